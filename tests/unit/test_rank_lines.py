"""What the ranks of a job say to rank 0 and hear from it, over an MPI made of queues."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, cast

import pytest

import data_gen.sharing.crew as crew
import data_gen.sharing.ranks as ranks
from data_gen.sharing.drive import Outcome
from data_gen.sharing.messages import Alive, Begun, Broken, Ended, Seal, Stop, Want
from data_gen.sharing.ranks import Quit, RankHub, RankLine, RanksError, Start, Team
from stemdl.launch import Rank
from tests.small_run import small_config


class QueueTeam:
    """In place of `Team`: ranks are threads of this process."""

    def __init__(self, rank: int, boxes: list[SimpleQueue[tuple[int, Any]]]) -> None:
        self.rank = self.local_rank = rank
        self.size = self.local_size = len(boxes)
        self.lost: set[int] = set()
        self.abandoned: list[str] = []
        self._boxes = boxes

    def send(self, rank: int, message: object) -> None:
        """It is there at once."""
        self._boxes[rank].put((self.rank, message))

    def receive(self) -> tuple[int, Any] | None:
        """A message that is there."""
        try:
            return self._boxes[self.rank].get_nowait()
        except Empty:
            return None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is there."""
        return self._boxes[self.rank].empty()

    def flush(self) -> None:
        """Everything has left."""

    def alive_every_s(self) -> float:
        """Often, here."""
        return 0.02

    def abandon(self, reason: str, code: int) -> None:
        """Remember it."""
        self.abandoned.append(f"{code}: {reason}")


class Exit(BaseException):
    """In place of the end of the process."""


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What ranks that ended themselves have said."""
    said: list[str] = []

    def leave(code: int) -> None:
        raise Exit

    monkeypatch.setattr(os, "write", lambda stream, text: said.append(text.decode()))
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(threading, "excepthook", lambda found: None)  # of Exit in the thread that talks
    return said


@pytest.fixture
def teams() -> list[QueueTeam]:
    boxes: list[SimpleQueue[tuple[int, Any]]] = [SimpleQueue() for _ in range(3)]
    return [QueueTeam(rank, boxes) for rank in range(3)]


def wait_for(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def heard(team: QueueTeam) -> list[Any]:
    """All that is there, but for signs of life."""
    found = []
    while (one := team.receive()) is not None:
        if not isinstance(one[1], Alive):
            found.append(one[1])
    return found


def lines(teams: list[QueueTeam], silence_s: float = 20.0) -> tuple[QueueTeam, RankLine]:
    return teams[0], RankLine(cast(Team, teams[1]), silence_s)


def test_orders_and_messages_come_to_their_places(teams: list[QueueTeam]) -> None:
    first, line = lines(teams)
    stops: list[float] = []
    line.on_stop(stops.append)
    for message in (Start("hash"), Alive(), Seal(), Stop(3.0), Quit(85)):
        first.send(1, message)
    assert line.orders.get(timeout=20.0) == Start("hash")
    assert line.orders.get(timeout=20.0) == Quit(85)
    assert line.inbox.get(timeout=20.0) == Seal()
    assert line.inbox.get(timeout=20.0) == Stop(3.0)
    assert stops == [3.0]
    assert line.inbox.empty(), "signs of life are for the thread alone"
    line.tell(Want())
    line.tell(Ended())
    line.close()
    assert heard(first) == [Want(), Ended()], "everything has left before the end"


def test_signs_of_life_are_given_between_start_and_end_alone(teams: list[QueueTeam]) -> None:
    first, line = lines(teams)
    time.sleep(0.06)
    assert first.receive() is None
    first.send(1, Start("hash"))
    wait_for(lambda: first.receive() == (1, Alive()))
    line.tell(Ended())
    wait_for(lambda: first.receive() == (1, Ended()))
    time.sleep(0.06)
    assert first.receive() is None
    line.close()


class Hours:
    """A clock that can be put forward, in place of the module `time`."""

    def __init__(self) -> None:
        self.offset_s = 0.0

    def monotonic(self) -> float:
        """Now."""
        return time.monotonic() + self.offset_s

    def sleep(self, seconds: float) -> None:
        """In real time."""
        time.sleep(seconds)

    def forward(self, seconds: float) -> None:
        """Step by step, as if somebody looked at it all the time."""
        for _ in range(int(seconds / 4.0)):
            self.offset_s += 4.0
            time.sleep(0.02)


@pytest.fixture
def hours(monkeypatch: pytest.MonkeyPatch) -> Hours:
    clock = Hours()
    monkeypatch.setattr(ranks, "time", clock)
    return clock


def test_a_rank_leaves_when_rank_0_says_nothing_any_more(teams: list[QueueTeam], left: list[str], hours: Hours) -> None:
    first, line = lines(teams, silence_s=60.0)
    hours.forward(120.0)
    assert left == [], "before the start it waits much longer"
    first.send(1, Start("hash"))
    assert line.orders.get(timeout=20.0) == Start("hash")
    for _ in range(5):
        hours.forward(20.0)
        first.send(1, Alive())
        time.sleep(0.02)
    assert left == []
    deadline = time.monotonic() + 20.0
    while not left and time.monotonic() < deadline:
        hours.forward(4.0)
    assert "rank 1 on" in left[0]
    assert "rank 0 has said nothing for" in left[0]


def test_after_its_end_a_rank_waits_for_the_next_order_much_longer(
    teams: list[QueueTeam], left: list[str], hours: Hours
) -> None:
    """Rank 0 counts what is sealed, or trains."""
    first, line = lines(teams, silence_s=20.0)
    first.send(1, Start("hash"))
    line.orders.get(timeout=20.0)
    line.tell(Ended())
    hours.forward(200.0)
    assert left == []
    first.send(1, Quit(0))
    assert line.orders.get(timeout=20.0) == Quit(0)
    line.close()


def test_a_job_that_was_suspended_as_a_whole_goes_on(teams: list[QueueTeam], left: list[str], hours: Hours) -> None:
    first, line = lines(teams, silence_s=60.0)
    first.send(1, Start("hash"))
    line.orders.get(timeout=20.0)
    hours.offset_s = 5000.0
    time.sleep(0.1)
    assert left == []
    line.close()


def test_a_fault_of_mpi_ends_the_rank_with_its_reason(
    teams: list[QueueTeam], left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the main thread would wait for ever."""

    def broken() -> None:
        raise RuntimeError("MPI_ERR_OTHER")

    monkeypatch.setattr(teams[1], "receive", broken)
    lines(teams)
    wait_for(lambda: left)
    assert "MPI_ERR_OTHER" in left[0]


# Rank 0


@pytest.fixture
def hub(tmp_path: Path, teams: list[QueueTeam]) -> RankHub:
    return RankHub(cast(Team, teams[0]), small_config(tmp_path), "hash")


def test_rank_0_hears_all_and_its_own_maker(teams: list[QueueTeam], hub: RankHub) -> None:
    assert [team.receive() for team in teams[1:]] == [(0, Start("hash"))] * 2
    teams[2].send(0, Want())
    hub.own_line.tell(Begun(("train", 1)))
    found = [one for one in hub.receive(0.0) if one[1] != Alive()]
    assert sorted(found, key=lambda one: one[0]) == [(0, Begun(("train", 1))), (2, Want())]
    stops: list[float] = []
    hub.own_line.on_stop(stops.append)
    hub.send(0, Stop(2.0))
    hub.send(1, Seal())
    assert stops == [2.0]
    assert hub.own_line.inbox.get_nowait() == Stop(2.0)
    assert Seal() in heard(teams[1])


def test_a_rank_that_was_given_up_is_told_nothing_any_more(teams: list[QueueTeam], hub: RankHub) -> None:
    hub.give_up(2)
    assert not hub.restart(2)
    for team in teams[1:]:
        heard(team)
    hub._alive_at = 0.0
    assert (0, Alive()) in hub.receive(0.0), "rank 0 lives as long as it listens"
    hub.send(2, Seal())
    assert teams[2].receive() is None
    assert teams[1].receive() == (0, Alive())


# A maker on rank 0


def test_a_maker_on_rank_0_that_was_given_up_ends_when_all_others_have(
    tmp_path: Path, teams: list[QueueTeam], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hung in an item, came back, and nobody would have told it to end."""

    class Waiting:
        def __init__(self, config: object, berth: object, line: Any, config_hash: str) -> None:
            self.line = line

        def run(self) -> None:
            assert self.line.inbox.get(timeout=20.0) == Stop(0.0)

    monkeypatch.setattr(crew, "Maker", Waiting)
    outcome = Outcome(lost=[(0, "hangs")])
    done = crew.RankCrew(cast(Team, teams[0])).work(small_config(tmp_path), "hash", 3, lambda hub, asked: outcome)
    assert done is outcome
    assert teams[0].abandoned == []


def test_a_maker_on_rank_0_that_never_comes_back_is_abandoned_with_the_reason(
    tmp_path: Path, teams: list[QueueTeam], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck:
        def __init__(self, config: object, berth: object, line: object, config_hash: str) -> None:
            pass

        def run(self) -> None:
            wait_for(lambda: teams[0].abandoned)

    monkeypatch.setattr(crew, "Maker", Stuck)
    monkeypatch.setattr(crew, "_END_TIMEOUT_S", 0.05)
    crew.RankCrew(cast(Team, teams[0])).work(small_config(tmp_path), "hash", 3, lambda hub, asked: Outcome())
    assert teams[0].abandoned == ["3: rank 0 hangs in an item; all others have ended"]


def test_a_fault_of_the_drive_comes_out_and_ends_the_maker(
    tmp_path: Path, teams: list[QueueTeam], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Waiting:
        def __init__(self, config: object, berth: object, line: Any, config_hash: str) -> None:
            self.line = line

        def run(self) -> None:
            assert self.line.inbox.get(timeout=20.0) == Stop(0.0)

    def broken(hub: object, asked: object) -> Outcome:
        raise ZeroDivisionError("a fault of the drive")

    monkeypatch.setattr(crew, "Maker", Waiting)
    with pytest.raises(ZeroDivisionError, match="a fault of the drive"):
        crew.RankCrew(cast(Team, teams[0])).work(small_config(tmp_path), "hash", 3, broken)


def test_a_rank_without_a_configuration_says_so_and_waits_for_its_end(teams: list[QueueTeam]) -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(crew.refuse(cast(Team, teams[2]), "file.yaml: no such file")))
    thread.start()
    wait_for(lambda: not teams[0].is_empty)
    assert heard(teams[0]) == [Broken("rank 2: file.yaml: no such file", is_ours=False)]
    teams[0].send(2, Start("hash"))
    teams[0].send(2, Quit(2))
    thread.join(20.0)
    assert codes == [2]


def test_without_mpi4py_the_user_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(RanksError, match=r"srun \(Slurm\) started 8 ranks, but mpi4py .*pip install 'stemdl\[mpi\]'"):
        Team(Rank("srun (Slurm)", 3, 8))
