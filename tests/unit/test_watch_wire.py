"""The watch's messages and connections: strangers, pieces of lines, and peers that take nothing."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from stemdl.comm.watch_verdict import Report
from stemdl.comm.watch_wire import VERSION, Channel, decode, encode, encode_report, report_of, short_name
from watch_cases import TOKEN, answers, party, until, wait


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    """A channel, and the other end of its connection."""
    ours, theirs = socket.socketpair()
    yield Channel(ours, 100), theirs
    ours.close()
    theirs.close()


def test_lines_come_whole_whatever_the_pieces(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    other.send(b"on")
    assert channel.receive() == ([], True)
    other.send(b"e\ntwo\nth")
    assert channel.receive() == ([b"one", b"two"], True)
    channel.put_back([b"one", b"two"])
    assert channel.receive() == ([b"one", b"two"], True)
    other.send(b"ree\n")
    other.close()
    assert channel.receive() == ([b"three"], True)
    assert channel.receive() == ([], False)


@pytest.mark.parametrize("sent", [b"x" * 101, b"x" * 101 + b"\n"])
def test_a_line_has_a_limit(pair: tuple[Channel, socket.socket], sent: bytes) -> None:
    channel, other = pair
    other.send(sent)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        channel.receive()


def test_a_peer_that_takes_nothing_costs_bounded_memory_and_never_waits(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    while not channel.has_unsent:
        channel.send(b"x" * 50_000 + b"\n")
    for _ in range(100):
        channel.send(b"y" * 10_000 + b"\n")
        channel.send(b"z\n", may_drop=True)
    assert len(channel._out) < 200_000
    other.setblocking(False)
    got = b""
    with contextlib.suppress(BlockingIOError):
        while data := other.recv(2**20):
            got += data
            channel.flush()
    assert not channel.has_unsent
    assert b"z" not in got
    assert {line[:1] for line in got.splitlines()} <= {b"x", b"y"}


def test_a_broken_connection_is_told_once_by_receive(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    other.close()
    channel.send(b"x\n")
    channel.flush()
    assert not channel.has_unsent
    assert channel.receive()[1] is False


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[1]", b'{"t": 1}', b"\xff\xfe", b"[" * 200_000, b"1" * 10_000, b"GET / HTTP/1.1\r"]
)
def test_what_is_no_message(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode(line)


def test_a_report_arrives_as_it_was() -> None:
    report = Report(
        3,
        (wait(3, "grüppe 1", 1.5, 7),),
        ("validation", 1.0, 60.0),
        2.0,
        {3: frozenset([1, 2**32 - 1]), 2: frozenset()},
    )
    assert report_of(decode(encode_report(report))) == report
    assert report_of(decode(encode_report(Report(0)))) == Report(0)


@pytest.mark.parametrize(
    "change",
    [
        {"step": None},
        {"step": float("inf")},
        {"waits": 1},
        {"waits": [[1]]},
        {"waits": [[1, "g", 1, float("nan"), [], 0]]},
        {"busy": ["x"]},
        {"busy": ["x", 1, float("inf")]},
        {"excused": "now"},
        {"seen": [[1, ["x"]]]},
    ],
)
def test_what_is_no_report(change: dict[str, object]) -> None:
    message = decode(encode_report(Report(0)))
    with pytest.raises(ValueError):
        report_of(message | change)
    for name in ("step", "waits", "busy", "excused", "seen"):
        with pytest.raises(ValueError, match="not a report"):
            report_of({key: value for key, value in message.items() if key != name})


def test_long_names_stay_different() -> None:
    long = [short_name("x" * 500 + end) for end in "ab"]
    assert len(set(long)) == 2
    assert {len(name) for name in long} == {200}
    assert short_name("conv.weight") == "conv.weight"


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x00\xff" * 2000,
        b"x" * 10_000,
        encode("hello", v=VERSION, token="guessed", rank=1, size=2, host="far", pid=1),
        encode("hello", v=VERSION, token=TOKEN, rank=-1, size=2, host="far", pid=1),
        encode("hello", v=VERSION, token=TOKEN, rank=True, size=2, host="far", pid=1),
        encode("hello", v=VERSION, token=TOKEN, rank=1, size=2, host=["far"], pid=1),
        encode("hello", v=VERSION, token="gür", rank=1, size=2, host="far", pid=1),
        encode("fail", reason="let me end your job", wait_s=0.0),
        encode("bye"),
        b"",
    ],
)
def test_strangers_are_cut_off_without_an_answer_and_disturb_nobody(said: bytes) -> None:
    with party(2) as here:
        stranger = here.stranger()
        stranger.send(said)
        if not said:
            stranger.socket.shutdown(socket.SHUT_WR)
        assert answers(stranger) == []
        stranger.close()
        until(lambda: here.server.strangers == 1)
        assert here.server.verdict is None
        assert all(watch._thread.is_alive() for watch in here.watches)


def test_a_hello_of_another_version_is_answered() -> None:
    with party(2, everybody=False) as here:
        one = here.stranger()
        one.send(encode("hello", v=VERSION + 1, token=TOKEN, rank=1, size=2, host="far", pid=1))
        assert decode(answers(one)[0]) == {"t": "refused", "reason": "another version of stemdl runs on rank 0"}
        one.close()
