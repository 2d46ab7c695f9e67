"""The drive with a hub made of a few lines: time, signals, losses, faults, records, and what it shows."""

from __future__ import annotations

import signal
import time
from collections import deque

import pytest

from data_gen.sharing.coordinator import SIGNAL_GRACE_S
from data_gen.sharing.messages import (
    Assign,
    FromMaker,
    Lost,
    Said,
    Stop,
    ToMaker,
)
from drive_cases import ModelHub, Run
from sharing_cases import ModelMaker
from stemdl.time_limit import TimeLimit


def test_everything_is_made_and_shown() -> None:
    run = Run(ModelHub(2), [1.0] * 10, done=5)
    outcome = run.go()
    assert outcome.sealed == {("train", item) for item in range(10)}
    assert (outcome.lost, outcome.out_of_time, outcome.signal) == ([], "", 0)
    assert run.progress.done[0] == 5
    assert run.progress.done[-1] == 15
    assert run.progress.done == sorted(run.progress.done)
    assert run.records == []


def test_a_failure_is_put_on_record_when_it_comes() -> None:
    hub = ModelHub()

    def fail_some(maker: ModelMaker, item: int) -> None:
        if item in (1, 2):
            assert [len(record) for record in run.records] == list(range(1, item)), "before the next one begins"
            maker.fail()
        else:
            maker.finish()

    hub.act = fail_some
    run = Run(hub, [1.0] * 4)
    outcome = run.go()
    assert [failure.item for failure in run.records[-1]] == [1, 2]
    assert outcome.sealed == {("train", 0), ("train", 3)}
    assert run.progress.done[-1] == 4, "failed ones are settled as well"


def test_the_limit_of_time_stops_and_says_whose_it_is() -> None:
    hub = ModelHub()
    limit = TimeLimit(time.monotonic() + 1e6, "Slurm job 7", margin_s=60.0)

    def soon_over(maker: ModelMaker, item: int) -> None:
        maker.finish()
        if item == 1:
            run.drive._limit = TimeLimit(time.monotonic() + 60.0 - 1e-3, "Slurm job 7", margin_s=60.0)
            time.sleep(2e-3)

    hub.act = soon_over
    run = Run(hub, [1.0] * 9, limit=limit)
    outcome = run.go()
    assert outcome.out_of_time == "Slurm job 7"
    assert run.stops == [Stop(30.0)]
    assert outcome.sealed == {("train", 0), ("train", 1)}, "what was made is sealed"
    assert any("time is up (Slurm job 7)" in note for note in run.progress.notes)


def test_a_signal_to_this_process_stops() -> None:
    hub = ModelHub()
    run = Run(hub, [1.0] * 9)

    def asked_for(maker: ModelMaker, item: int) -> None:
        run.asked = signal.SIGUSR2 if item == 4 else 0
        maker.finish()

    hub.act = asked_for
    outcome = run.go()
    assert outcome.signal == signal.SIGUSR2
    assert run.stops == [Stop(SIGNAL_GRACE_S)]
    assert outcome.sealed == {("train", item) for item in range(5)}


def test_what_a_maker_says_is_a_line_of_its_own() -> None:
    hub = ModelHub()
    hub.heard.append((0, Said("burst buffer /mnt/bb: 1600 GB free")))
    run = Run(hub, [1.0])
    run.go()
    assert run.progress.notes == ["burst buffer /mnt/bb: 1600 GB free"]


def test_a_lost_maker_is_named_and_another_takes_its_place() -> None:
    hub = ModelHub(per_shard=2)
    killed: list[int] = []

    def die_once(maker: ModelMaker, item: int) -> None:
        if item == 3 and not killed:
            killed.append(item)
            hub.die(maker)
        else:
            maker.finish()

    hub.act = die_once
    run = Run(hub, [1.0] * 6)
    outcome = run.go()
    assert hub.started_again == [0]
    assert outcome.lost == [(0, "was killed by signal 9 (SIGKILL)")]
    assert run.progress.notes == ["rank 0 was killed by signal 9 (SIGKILL); another process takes its place"]
    assert outcome.sealed == {("train", item) for item in range(6)}
    assert len(hub.disks[0]) == 6, "nothing was made twice"


def test_what_a_lost_maker_sealed_without_a_word_is_not_made_again() -> None:
    """Killed between the line in the manifest and its message."""
    hub = ModelHub(per_shard=2)
    killed: list[int] = []

    def die_unheard(maker: ModelMaker, item: int) -> None:
        maker.finish()
        if item == 3 and not killed:
            killed.append(item)
            maker.outbox.clear()
            hub.die(maker)

    hub.act = die_unheard
    outcome = Run(hub, [1.0] * 6).go()
    assert outcome.sealed == {("train", item) for item in range(6)}
    assert sorted(hub.disks[0]) == sorted(set(hub.disks[0])), "nothing was made twice"


def test_a_maker_that_hangs_is_ended_before_others_get_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = ModelHub(2)
    hub.can_restart = False
    hub.act = lambda maker, item: None if item == 0 and not hub.given_up else maker.finish()
    run = Run(hub, [9.0, 1.0, 1.0, 1.0])
    given_to: list[tuple[int, list[int]]] = []
    send = hub.send

    def noted(number: int, message: ToMaker) -> None:
        if isinstance(message, Assign) and message.tasks[0].item == 0:
            given_to.append((number, list(hub.given_up)))
        send(number, message)

    def overdue(now: float) -> list[tuple[int, Lost]]:
        return [(0, Lost("hangs"))] if run.coordinator.made == 3 and not hub.given_up else []

    monkeypatch.setattr(hub, "send", noted)
    monkeypatch.setattr(run.coordinator, "overdue", overdue)
    outcome = run.go()
    assert given_to == [(0, []), (1, [0])], "the first one was ended by then"
    assert outcome.lost == [(0, "hangs")]
    assert run.progress.notes == ["rank 0 hangs; others do its items"]
    assert outcome.sealed == {("train", item) for item in range(4)}


def test_processes_that_die_before_they_come_to_an_item_are_not_started_for_ever() -> None:
    hub = ModelHub()
    starts: list[float] = []

    def receive(timeout_s: float) -> list[tuple[int, FromMaker]]:
        starts.append(timeout_s)
        assert len(starts) < 20
        hub.die(hub.makers[0])
        heard, hub.heard = list(hub.heard), deque()
        return heard

    hub.receive = receive  # type: ignore[method-assign]
    run = Run(hub, [1.0] * 3)
    outcome = run.go()
    assert len(outcome.lost) == 3
    assert hub.started_again == [0, 0]
    assert run.progress.notes[-1].endswith("others do its items")
    assert outcome.sealed == frozenset()
