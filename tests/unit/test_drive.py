"""The drive with a hub made of a few lines: time, signals, losses, faults, records, and what it shows."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Sequence

import pytest

from data_gen.sharing import drive as drive_module
from data_gen.sharing.coordinator import SIGNAL_GRACE_S, Coordinator
from data_gen.sharing.drive import Drive, Outcome
from data_gen.sharing.messages import (
    Assign,
    Begun,
    Failure,
    FromMaker,
    ItemKey,
    Lost,
    Made,
    PutBack,
    Said,
    Stop,
    ToMaker,
)
from sharing_cases import FINGERPRINT, ModelMaker, tasks_of
from stemdl.time_limit import TimeLimit
from tests.small_run import Recorder


class ModelHub:
    """Makers that make an item each time they are listened to. `act` may do something else with a maker and an item."""

    def __init__(self, makers: int = 1, per_shard: int = 3) -> None:
        self.per_shard = per_shard
        self.numbers = range(makers)
        self.disks: dict[int, list[ItemKey]] = {number: [] for number in self.numbers}
        self.makers = {number: self._process(number) for number in self.numbers}
        self.act: Callable[[ModelMaker, int], None] = lambda maker, item: maker.finish()
        self.heard: deque[tuple[int, FromMaker]] = deque()
        self.told: list[tuple[int, ToMaker]] = []
        self.given_up: list[int] = []
        self.started_again: list[int] = []
        self.can_restart = True

    def receive(self, timeout_s: float) -> list[tuple[int, FromMaker]]:
        """Each maker reads what has come, and does one thing."""
        for maker in list(self.makers.values()):
            if maker.ended:
                continue
            if maker.under_way is None:
                maker.read()
            if maker.stopping:
                maker.end()
            elif maker.tasks or maker.under_way is not None:
                task = maker.under_way or maker.begin(ask_early=False)
                self.act(maker, task.item)
            self._say(maker)
        heard, self.heard = list(self.heard), deque()
        return heard

    def _say(self, maker: ModelMaker) -> None:
        while maker.outbox:
            self.heard.append((maker.number, maker.outbox.popleft()))

    def die(self, maker: ModelMaker) -> None:
        """What it has said is heard, then that it is gone."""
        self._say(maker)
        self.heard.append((maker.number, Lost("was killed by signal 9 (SIGKILL)")))
        maker.ended = True

    def send(self, number: int, message: ToMaker) -> None:
        """It arrives at once."""
        self.told.append((number, message))
        self.makers[number].inbox.append(message)

    def give_up(self, number: int) -> None:
        """It is dead now."""
        self.given_up.append(number)
        self.makers[number].ended = True

    def sealed_by(self, number: int) -> Sequence[ItemKey]:
        """What is on its disk."""
        return list(self.disks[number])

    def restart(self, number: int) -> bool:
        """Another takes its place."""
        if self.can_restart:
            self.started_again.append(number)
            self.makers[number] = self._process(number)
        return self.can_restart

    def close(self) -> None:
        """Nothing is open."""

    def _process(self, number: int) -> ModelMaker:
        maker = ModelMaker(number, self.per_shard, self.disks[number])
        maker.start()
        return maker


class Run:
    """One drive over a model hub, and everything that it told."""

    def __init__(self, hub: ModelHub, costs_s: Sequence[float], *, done: int = 0, limit: TimeLimit | None = None):
        self.hub = hub
        self.progress = Recorder()
        self.records: list[list[Failure]] = []
        self.asked = 0
        self.coordinator = Coordinator(
            tasks_of(costs_s), (), item_timeout_s=1e3, maker_timeout_s=1e3, now=time.monotonic(),
            fingerprint=FINGERPRINT,
        )  # fmt: skip
        for number in hub.numbers:
            self.coordinator.join(number, time.monotonic())
        self.drive = Drive(
            self.coordinator, hub, self.progress, done=done, limit=limit, stop_asked=lambda: self.asked,
            put_on_record=lambda failures: self.records.append(list(failures)),
        )  # fmt: skip

    def go(self) -> Outcome:
        """To the end."""
        return self.drive.run()

    @property
    def stops(self) -> list[Stop]:
        """What the first maker was told of the end."""
        return [message for number, message in self.hub.told if number == 0 and isinstance(message, Stop)]


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


class Hours:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        """Now."""
        return self.now_s


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
