"""The stall watch in threads: what ranks tell reaches rank 0, and every rank hears why the job ends."""

from __future__ import annotations

import json
import resource
import threading
import time
from pathlib import Path

import pytest

from stemdl.comm.errors import CommError
from stemdl.comm.watch import Watch, WatchLimits
from stemdl.comm.watch_server import WatchServer
from stemdl.comm.watch_wire import decode, encode
from watch_cases import GIVE_UP_S, PATIENT, Ends, answers, party, until

LATE = WatchLimits(0.5, 1.5, 30.0, 1.0)
QUIET = WatchLimits(20.0, 40.0, 2.0, 1.0)


def test_a_missing_rank_ends_all_and_is_named_by_each_once(tmp_path: Path) -> None:
    log = tmp_path / "watch.jsonl"
    with party(3, LATE, log=log) as here:
        for rank in (0, 2):
            here.watches[rank].submitted(4, "group 1 of 3", ["conv.weight", "conv.bias"])
        said = [end.wait() for end in here.ends]
        assert here.watches[0].warnings >= 1
    assert len(set(said)) == 1
    assert [len(end.said) for end in here.ends] == [1, 1, 1]
    assert "group 1 of 3 of step 4 (conv.weight, conv.bias): 2 of 3 ranks (0, 2) wait" in said[0]
    assert "alive, in step 0, computing" in said[0]
    assert "the job ends at 1.5 s" in here.warned[0]
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [entry["event"] for entry in entries][-1] == "verdict"
    assert entries[0]["event"] == "warning"
    assert (entries[-1]["ranks"], entries[-1]["group"], entries[-1]["text"]) == ([1], "group 1 of 3", said[0])


def test_groups_that_come_and_go_end_nothing() -> None:
    with party(2, LATE) as here:
        until_s = time.monotonic() + 3.0
        step = 0
        while time.monotonic() < until_s:
            for watch in here.watches:
                watch.submitted(step, "group 1 of 1")
            time.sleep(0.05)
            for watch in here.watches:
                watch.completed(step, "group 1 of 1")
                watch.step_done(step)
            step += 1
        assert here.server.verdict is None
        assert here.warned == []


def test_a_group_completed_here_and_not_there_is_the_exchange() -> None:
    with party(2, LATE) as here:
        for watch in here.watches:
            watch.submitted(0, "group 1 of 2")
        here.watches[1].completed(0, "group 1 of 2")
        assert "all ranks have submitted it: the exchange itself hangs" in here.ends[1].wait()


def test_groups_submitted_by_all_in_another_order_are_no_missing_ranks() -> None:
    with party(2, LATE) as here:
        for number in range(100):
            here.watches[0].submitted(0, f"group {number} of 100")
            here.watches[1].submitted(0, f"group {99 - number} of 100")
        said = here.ends[0].wait()
        assert "and all ranks have submitted it: the exchange itself hangs" in said
        assert "collective of the transport that ranks have called in different order" in said


def test_a_busy_rank_may_be_late() -> None:
    with party(2, LATE) as here:
        with here.watches[1].busy("validation", 60.0):
            here.watches[0].submitted(0, "group 1 of 2")
            time.sleep(2.5)
            assert here.server.verdict is None
            assert here.warned == []
        assert "rank 1" in here.ends[0].wait()


def test_a_busy_rank_must_be_ready_in_its_time() -> None:
    with party(2, LATE) as here, here.watches[1].busy("validation", 0.2):
        here.watches[0].submitted(0, "group 1 of 2")
        assert "busy with 'validation' for" in here.ends[0].wait()


def test_a_rank_whose_connection_closes() -> None:
    with party(3, everybody=False) as here:
        here.join(0)
        here.join(1)
        guest = here.guest(2, pid=4711)
        guest.close()
        for rank in (0, 1):
            assert here.ends[rank].wait() == "rank 2 (far, pid 4711): its process ended"


def test_a_rank_that_goes_silent() -> None:
    with party(2, QUIET, everybody=False) as here:
        here.join(0)
        guest = here.guest(1)
        assert here.ends[0].wait().startswith("rank 1 (far, pid 7): no sign of life for 2.")
        guest.close()


def test_a_rank_that_never_comes_ends_the_others() -> None:
    with party(2, everybody=False, join_s=0.5) as here:
        here.join(0)
        assert "rank 1: has not joined the watch" in here.ends[0].wait()


def test_a_rank_that_comes_after_the_verdict_hears_it_too() -> None:
    with party(2, everybody=False, join_s=0.2) as here:
        assert "ranks 0, 1: has not joined the watch" in here.server_ends.wait()
        here.join(1)
        assert "has not joined the watch" in here.ends[1].wait()


def test_rank_zero_that_is_gone_or_silent_is_named_by_the_others() -> None:
    with party(2, QUIET) as here:
        here.server._turn = lambda: time.sleep(0.1)  # type: ignore[method-assign]
        assert "no sign of life for 2." in here.ends[1].wait()
    with party(2) as here:
        with here.server._peers[1].channel.socket as connection:
            here.server._selector.unregister(connection)
        assert here.ends[1].wait().startswith("rank 0 (")
        assert here.ends[1].said[0].endswith("): its process ended")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_the_server_itself_ends_all() -> None:
    with party(2) as here:

        def broken() -> None:
            raise OSError(24, "Too many open files")

        here.server._turn = broken  # type: ignore[method-assign]
        for end in here.ends:
            assert "the stall watch on rank 0 failed: OSError(24, 'Too many open files')" in end.wait()


def test_fail_gives_a_truer_cause_time_to_turn_up() -> None:
    with party(3, everybody=False) as here:
        here.join(0)
        here.join(1)
        guest = here.guest(2)
        threading.Timer(0.3, guest.close).start()
        with pytest.raises(SystemExit):
            here.watches[1].fail("Connection closed by peer", wait_s=GIVE_UP_S)
        assert here.ends[1].said == ["rank 2 (far, pid 7): its process ended"] * 2  # by fail, and by the thread
        assert "rank 2" in here.ends[0].wait()


def test_fail_without_another_cause_is_everybodys_reason() -> None:
    with party(2) as here:
        with pytest.raises(SystemExit):
            here.watches[1].fail("fc.weight is 4x4, on rank 0 4x5", wait_s=0.2)
        for end in here.ends:
            assert end.wait().endswith(" failed: fc.weight is 4x4, on rank 0 4x5")


def test_fail_where_the_server_says_nothing_ends_this_rank_alone() -> None:
    with party(2, PATIENT) as here:
        here.server._turn = lambda: time.sleep(0.1)  # type: ignore[method-assign]
        time.sleep(0.3)
        with pytest.raises(SystemExit):
            here.watches[1].fail("broken", wait_s=0.1)
        assert here.ends[1].said == ["broken"]


def test_time_that_jumps_for_all_ends_nothing() -> None:
    with party(2, QUIET) as here:
        here.watches[0].submitted(0, "group 1 of 2")
        time.sleep(0.5)
        here.clock.jumped_s += 1000.0
        time.sleep(1.5)
        assert here.server.verdict is None
        assert here.ends[1].said == []


def test_an_orderly_end_in_any_order_and_the_server_waits() -> None:
    with party(3) as here:
        here.watches[1].close()
        here.watches[0].close()
        closing = threading.Thread(target=here.server.close)
        closing.start()
        time.sleep(0.5)
        assert closing.is_alive()
        here.watches[2].close()
        here.watches[2].close()
        closing.join(GIVE_UP_S)
        assert not closing.is_alive()
        assert [end.said for end in here.ends] == [[], [], []]


def test_rank_zero_in_its_end_still_watches_over_the_others() -> None:
    with party(3, LATE) as here:
        here.watches[0].close()
        here.watches[1].submitted(9, "group 1 of 2")
        here.server.close()
        assert "group 1 of 2 of step 9" in here.server_ends.wait()
        assert "rank 0 (" in here.ends[2].wait()
        assert "which has ended its work in good order" in here.ends[2].said[0]


def test_a_server_that_cannot_wait_longer_lets_the_others_go_on() -> None:
    with party(2) as here:
        here.watches[0].close()
        here.server.close(wait_s=0.1)
        until(lambda: not here.watches[1]._thread.is_alive())
        assert here.ends[1].said == []
        with pytest.raises(SystemExit):
            here.watches[1].fail("the exchange broke")
        assert here.ends[1].said == ["the exchange broke"]


def test_rank_zero_stays_until_the_others_have_heard() -> None:
    with party(2, PATIENT, everybody=False) as here:
        here.join(0)
        guest = here.guest(1)
        with pytest.raises(SystemExit):
            here.watches[0].fail("broken", wait_s=0.1)
        assert decode(answers(guest)[0])["t"] == "end"
        assert not here.server.others_gone.is_set()
        guest.close()
        assert here.server.others_gone.wait(GIVE_UP_S)


def test_wishes_that_cannot_be_met_are_refused_in_words() -> None:
    with party(2) as here:
        with pytest.raises(CommError, match=r"rank 1 is there already \(.*, pid \d+\)"):
            here.join(1)
        with pytest.raises(CommError, match="rank 0 is one of 2"):
            here.join(1, size=3)
        with pytest.raises(CommError, match="another token"):
            here.join(1, token="guessed")
        assert here.server.verdict is None
    with pytest.raises(CommError, match=r"the watch on rank 0 \(127.0.0.1:\d+\) is not reached in 0.3 s"):
        Watch(rank=1, size=2, address=("127.0.0.1", here.port), token="", limits=PATIENT, end=Ends(), connect_s=0.3)


def test_a_server_listens_where_it_is_told_to_and_says_where_it_cannot() -> None:
    with party(1), pytest.raises(CommError, match=r"cannot listen on 192.0.2.1"):
        WatchServer(size=1, token="", limits=PATIENT).start("192.0.2.1")


def test_a_log_that_cannot_be_written_costs_a_warning_not_the_watch(tmp_path: Path) -> None:
    with party(2, log=tmp_path / "nowhere" / "watch.jsonl") as here:
        with pytest.raises(SystemExit):
            here.watches[1].fail("broken", wait_s=0.1)
        assert here.ends[0].wait().endswith("broken")
        assert here.warned == [
            f"warning: the watch's log {here.server._log} cannot be written: No such file or directory"
        ]


def test_a_rank_that_speaks_another_language() -> None:
    with party(2, everybody=False) as here:
        here.join(0)
        guest = here.guest(1)
        guest.send(encode("state", step="six", waits=3))
        assert "its watch sent what this one does not understand" in here.ends[0].wait()
        guest.close()


@pytest.mark.parametrize(("soft", "hard", "asks_for"), [(1024, 20000, 5512), (1024, -1, 5512), (6000, 20000, None)])
def test_more_connections_than_a_process_may_open_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, asks_for: int | None
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    server = WatchServer(size=5000, token="", limits=PATIENT)
    server.start("127.0.0.1")
    server.close(wait_s=0.0)
    assert asked == ([] if asks_for is None else [(asks_for, hard)])


def test_more_connections_than_the_system_allows_are_told_before_anybody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    with pytest.raises(CommError, match=r"rank 0 needs 5512 open files .* allowed here: 4096; raise it"):
        WatchServer(size=5000, token="", limits=PATIENT).start("127.0.0.1")
