"""The drive with a hub made of a few lines: time, signals, losses, faults, records, and what it shows."""

from __future__ import annotations

import signal

import pytest

from data_gen.sharing import drive as drive_module
from data_gen.sharing.messages import (
    Begun,
    FromMaker,
    Made,
    PutBack,
    Stop,
)
from drive_cases import Hours, ModelHub, Run
from sharing_cases import ModelMaker
from tests.small_run import Recorder


def test_deaths_after_some_work_do_not_count_against_a_maker() -> None:
    hub = ModelHub(per_shard=1)

    def die_each_time(maker: ModelMaker, item: int) -> None:
        maker.finish()
        hub.die(maker)

    hub.act = die_each_time
    outcome = Run(hub, [1.0] * 8).go()
    assert outcome.sealed == {("train", item) for item in range(8)}
    assert len(outcome.lost) == 8


def test_a_program_that_fails_at_everything_stops_after_a_while() -> None:
    hub = ModelHub()
    hub.act = lambda maker, item: maker.fail()
    run = Run(hub, [1.0] * 500)
    run.go()
    assert len(run.records[-1]) == 20
    assert run.coordinator.unfinished == 480


def test_one_sample_that_was_made_lets_it_go_on_whatever_fails() -> None:
    hub = ModelHub()
    hub.act = lambda maker, item: maker.finish() if item == 7 else maker.fail()
    run = Run(hub, [1.0] * 100)
    run.go()
    assert len(run.records[-1]) == 99


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_exception_lets_the_makers_seal_first(error: BaseException) -> None:
    hub = ModelHub(2, per_shard=100)
    run = Run(hub, [1.0] * 50)

    def break_off(maker: ModelMaker, item: int) -> None:
        maker.finish()
        if item == 11:
            raise error

    hub.act = break_off
    with pytest.raises(type(error)):
        run.go()
    assert run.stops == [Stop(0.0)]
    assert sorted(key for disk in hub.disks.values() for key in disk) == [("train", item) for item in range(12)]
    assert run.coordinator.finished


def test_last_words_end_when_a_maker_says_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive_module, "_LAST_WORDS_S", 0.05)
    hub = ModelHub()
    run = Run(hub, [1.0] * 9)

    def hang(maker: ModelMaker, item: int) -> None:
        if item == 2:
            maker.ended = True  # as far as this hub is concerned: it does nothing more
            raise KeyboardInterrupt
        maker.finish()

    hub.act = hang
    with pytest.raises(KeyboardInterrupt):
        run.go()
    assert not run.coordinator.finished


def test_idle_time_is_counted_from_the_first_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maker 0 takes 6 s at its only item; maker 1 starts with it and takes 3 s: half of its time it was idle."""
    clock = Hours()
    monkeypatch.setattr(drive_module, "time", clock)
    run = Run(ModelHub(2), [6.0, 3.0])
    turn = run.drive._turn

    def heard(number: int, message: FromMaker) -> None:
        run.hub.receive = lambda timeout_s: [(number, message)]  # type: ignore[method-assign]
        turn(0.0)

    run.coordinator.join(0, clock.now_s)
    run.coordinator.join(1, clock.now_s)
    clock.now_s = 1010.0
    for number in (0, 1):
        run.coordinator._give(number)
        heard(number, Begun(("train", number)))
    clock.now_s = 1013.0
    heard(1, Made(("train", 1), 3.0))
    assert run.progress.done[-1] == 1
    clock.now_s = 1016.0
    heard(0, Made(("train", 0), 6.0))
    outcome = run.drive._sum_up()
    assert outcome.work_s == pytest.approx(6.0)
    assert outcome.end_idle_share == pytest.approx(0.25)
    assert outcome.idle_share == pytest.approx(0.25)


def test_the_time_left_is_estimated_by_cost_and_not_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Hours()
    monkeypatch.setattr(drive_module, "time", clock)
    told: list[float | None] = []

    class Estimates(Recorder):
        """Remembers the time left."""

        def advance(self, done: int, *, left_s: float | None = None, **figures: float) -> None:
            """Remember it."""
            told.append(left_s)

    run = Run(ModelHub(1), [90.0, 5.0, 5.0])
    run.drive._progress = Estimates()
    clock.now_s = 1010.0
    run.coordinator._give(0)
    for message in (Begun(("train", 0)), Made(("train", 0), 180.0)):
        run.hub.receive = lambda timeout_s, said=message: [(0, said)]  # type: ignore
        run.drive._turn(0.0)
        clock.now_s += 180.0
    assert told[0] is None
    assert told[-1] == pytest.approx(20.0), "a tenth of the cost is left, and items take twice what was estimated"


def test_an_item_that_was_put_back_is_no_failure() -> None:
    hub = ModelHub(2)
    dropped: list[int] = []

    def drop(maker: ModelMaker, item: int) -> None:
        if item == 0 and not dropped:
            dropped.append(maker.number)
            maker.end(signal.SIGTERM if maker.number else 0)
        else:
            maker.finish()

    hub.act = drop
    run = Run(hub, [9.0, 1.0, 1.0])
    outcome = run.go()
    assert dropped
    assert not any(isinstance(message, PutBack) for _, message in hub.told)
    assert outcome.sealed == {("train", item) for item in range(3)}
    assert run.records == []
