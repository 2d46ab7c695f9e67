"""The stall watch: where a rank is lost, late or in error, every rank ends in bounded time and says which, and where.

Each rank keeps one connection to rank 0, in a thread that a main thread in C code does not disturb, and gives a sign of
life about every second with the groups it waits for. `stemdl.comm.watch_server` on rank 0 hears them;
`stemdl.comm.watch_verdict` concludes. Only the standard library is needed, so that other programs can use it as well.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from stemdl.comm.errors import CommError
from stemdl.comm.watch_notes import Notes
from stemdl.comm.watch_server import REASON_MOST, WatchServer
from stemdl.comm.watch_verdict import WatchLimits
from stemdl.comm.watch_wire import (
    LINE_MOST_BYTES,
    VERSION,
    Channel,
    ProcessEnd,
    decode,
    encode,
    encode_report,
    short_name,
    text,
)
from stemdl.comm.watch_words import ended_itself, no_sign, place

__all__ = ["Watch", "WatchLimits"]

_CLOSE_S = 2.0
_TICK_S = 1.0
_RETRY_S = 0.2
_STEPS_KEPT = 2


class Watch:
    """One rank's line to the watch on rank 0.

    address: where the `WatchServer` listens; token: its secret. server: on rank 0, the server itself. end: what ends
    this process; by default it prints "stemdl: rank R: why" once and ends with EXIT_COMM, whatever other threads do.
    connect_s: how long rank 0 may be out of reach at the start. Other methods than `fail` and `close` only note down
    what is told, and never wait for the network. All may be called from any thread.

    Raises CommError where rank 0 is not reached, or does not accept this rank (there is one already, another size).
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        address: tuple[str, int],
        token: str,
        limits: WatchLimits,
        server: WatchServer | None = None,
        end: Callable[[str], NoReturn] | None = None,
        clock: Callable[[], float] = time.monotonic,
        connect_s: float = 30.0,
    ) -> None:
        self.rank, self.limits, self.server = rank, limits.for_size(size), server
        self._clock = clock
        self._end = end or (server.end if server is not None else ProcessEnd(rank, limits.grace_s))
        self._period_s = limits.sign_period_s(size)
        self._gap_s = max(2 * _TICK_S, self.limits.silence_s / 4)
        self._lock = threading.Lock()
        self._notes = Notes()
        self._sent: tuple[int, bool] | None = None
        self._wants_detail = False
        self._warnings = 0
        self._verdict: str | None = None
        self._ended = threading.Event()
        self._is_leaving = False
        if server is not None and server.own_address is not None:
            address = server.own_address
        hello = encode("hello", v=VERSION, token=token, rank=rank, size=size, host=_host_name(), pid=os.getpid())
        self._send_lock = threading.Lock()
        self._channel, welcome = _meet(address, hello, connect_s)
        self._server_place = place(0, text(welcome, "host"), int(welcome["pid"]))
        self._heard_s = self._turned_s = clock()
        self._next_sign_s = self._turned_s + self._period_s * (rank % 997) / 997  # not all at the same moment
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._channel.socket, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="stemdl-watch", daemon=True)
        self._thread.start()

    # -- what this rank does -------------------------------------------------------------------------------------------

    def submitted(self, step: int, group: str, tensors: Sequence[str] = ()) -> None:
        """This rank is ready with a group and waits for it, once in a step; for people, with the tensors in it.

        Anything that all ranks must come to can be such a group, if it has a name and number of its own.
        """
        with self._lock:
            self._notes.submitted(step, group, tensors, self._clock())

    def completed(self, step: int, group: str) -> None:
        """This rank has got a group that it had submitted."""
        with self._lock:
            self._notes.completed(step, group)

    def step_done(self, step: int) -> None:
        """This rank has ended a step. step: its number, or the next one's."""
        with self._lock:
            self._notes.step_done(step)

    @contextmanager
    def busy(self, what: str, allowed_s: float) -> Iterator[None]:
        """In the block this rank does what others need not (validation, a checkpoint) and may take up to `allowed_s`.

        A stall that it causes counts from the block's end, or from when the time is over.
        """
        with self._lock:
            number = self._notes.began(what, allowed_s, self._clock())
        try:
            yield
        finally:
            with self._lock:
                self._notes.stopped(number, self._clock())

    @property
    def warnings(self) -> int:
        """Stalls that have been reported so far, over all ranks."""
        return self._warnings if self.server is None else self.server.warnings

    def fail(self, reason: str, *, wait_s: float = 2.0) -> NoReturn:
        """This rank cannot go on, and with it no other: every rank ends with this reason.

        Unless within `wait_s` a truer one is found: a broken connection is often the first that is seen of a process
        that was killed. Where rank 0 says nothing, this rank ends by itself.
        """
        self._post(encode("fail", reason=reason[:REASON_MOST], wait_s=wait_s))
        if not self._is_leaving and self._thread.is_alive():
            self._ended.wait(wait_s + self.limits.grace_s)
        self._end(self._placed(self._verdict or reason))

    def close(self) -> None:
        """The orderly end of this rank: from here on it may be gone. Harmless when repeated."""
        self._is_leaving = True
        self._post(encode("bye"))
        self._thread.join(_CLOSE_S)
        self._channel.close()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._verdict is None and self._turn():
                pass
        finally:
            self._selector.close()
        if self._verdict is not None:
            self._ended.set()
            self._end(self._placed(self._verdict))

    def _placed(self, why: str) -> str:
        """With the group that this rank waits for, where the reason says nothing of one."""
        with self._lock:
            return why if " of step " in why else why + self._notes.where()

    def _turn(self) -> bool:
        """Hear rank 0, and give a sign of life when it is time; False when the watch is over."""
        wait_s = min(max(0.0, self._next_sign_s - self._clock()), _TICK_S)
        events = self._selector.select(wait_s)
        now_s = self._clock()
        gap_s = now_s - self._turned_s - _TICK_S
        if gap_s > self._gap_s:  # this process was stopped, or the machine, perhaps all of the job
            self._heard_s += gap_s
            with self._lock:
                self._notes.paused(gap_s)
        self._turned_s = now_s
        if events and not self._hear(now_s):
            return False
        if now_s - self._heard_s > self.limits.silence_s and not self._is_leaving:
            self._conclude(no_sign(self._server_place, now_s - self._heard_s))
        elif now_s >= self._next_sign_s and not self._is_leaving:
            self._next_sign_s = now_s + self._period_s
            self._sign(now_s)
        with self._send_lock:
            self._channel.flush()
        return True

    def _hear(self, now_s: float) -> bool:
        try:
            lines, is_open = self._channel.receive()
            for line in lines:
                self._heard_s = now_s
                message = decode(line)
                if message["t"] == "end":
                    self._verdict = text(message, "reason", LINE_MOST_BYTES)
                    return True
                if message["t"] == "bye":  # the server ends in good order: nobody watches any more
                    self._is_leaving = True
                elif message["t"] == "ok":
                    self._wants_detail, self._warnings = bool(message["detail"]), int(message["warnings"])
        except (ValueError, KeyError, TypeError) as error:
            self._conclude(f"{self._server_place}: its watch sent what this one does not understand ({error})")
            return True
        if not is_open and not self._is_leaving:
            self._conclude(ended_itself(self._server_place) if self.rank else "the stall watch of this process ended")
        return is_open

    def _conclude(self, why: str) -> None:
        """A verdict of this rank alone; should rank 0 be there yet, it hears why this one goes."""
        self._verdict = why
        self._post(encode("fail", reason=why, wait_s=0.0, is_own=False))

    def _sign(self, now_s: float) -> None:
        """What has changed; or only that this rank lives."""
        with self._lock:
            state = (self._notes.version, self._wants_detail)
            report = None if state == self._sent else self._notes.report(now_s, in_detail=self._wants_detail)
        self._sent = state
        self._post(encode("same") if report is None else encode_report(report))

    def _post(self, line: bytes) -> None:
        with self._send_lock:
            self._channel.send(line)


def _host_name() -> str:
    return short_name(socket.gethostname())


def _meet(address: tuple[str, int], hello: bytes, connect_s: float) -> tuple[Channel, Mapping[str, Any]]:
    """Connect to rank 0 and be let in."""
    host, port = address
    by_s = time.monotonic() + connect_s
    while True:
        left_s = by_s - time.monotonic()
        try:
            connected = socket.create_connection(address, timeout=max(0.1, min(10.0, left_s)))
            break
        except OSError as error:
            if left_s < _RETRY_S:
                raise CommError(
                    f"the watch on rank 0 ({host}:{port}) is not reached in {connect_s:g} s: {error}"
                ) from error
            time.sleep(_RETRY_S)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel = Channel(connected, LINE_MOST_BYTES)
    try:
        return channel, _welcome(channel, hello, f"the watch on rank 0 ({host}:{port})", by_s)
    except CommError:
        channel.close()
        raise


def _welcome(channel: Channel, hello: bytes, who: str, by_s: float) -> Mapping[str, Any]:
    """Rank 0's answer. A verdict that comes along with it is heard by the thread."""
    channel.send(hello)
    with selectors.DefaultSelector() as selector:
        selector.register(channel.socket, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, by_s - time.monotonic())):
                raise CommError(f"{who} does not answer")
            lines, is_open = channel.receive()
            channel.put_back(lines[1:])
            if lines:
                break
            if not is_open:
                raise CommError(f"{who} has closed the connection: another job's, or another token")
    try:
        answer = decode(lines[0])
    except ValueError as error:
        raise CommError(f"{who} does not speak our language: {error}") from error
    if answer["t"] != "welcome":
        raise CommError(f"{who} refuses this rank: {answer.get('reason', answer['t'])}")
    return answer
