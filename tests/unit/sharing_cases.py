"""Work sharing without processes: items, makers made of a few lines, and a day at the works on a clock of events."""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from data_gen.materials import Crystal
from data_gen.sharing.coordinator import Coordinator, Sending
from data_gen.sharing.messages import (
    AllSealed,
    Assign,
    Begun,
    Ended,
    Failure,
    FromMaker,
    Hello,
    ItemKey,
    Lost,
    Made,
    PutBack,
    Seal,
    Sealed,
    Stop,
    Task,
    ToMaker,
    Want,
)
from data_gen.worklist import Part
from stemdl.config.simulation import Simulation
from stemdl.seeds import Purpose

POLONIUM = Crystal("Po-sc", "Po", "sc", 3.35 * np.eye(3), np.zeros((1, 3)), (((84, 1.0),),), "a test")
FINGERPRINT = "what rank 0 has read"


def some_part(samples: int) -> Part:
    """A training part of one crystal."""
    sampling = Simulation.model_construct()
    purposes = (
        Purpose.TRAIN_SPECIMEN, Purpose.TRAIN_THICKNESS, Purpose.TRAIN_PHONONS, Purpose.TRAIN_PARAMETERS,
        Purpose.TRAIN_SCAN_NOISE,
    )  # fmt: skip
    return Part("train", (POLONIUM,), samples, sampling, *purposes)


def tasks_of(costs_s: Sequence[float]) -> list[Task]:
    """One task for each cost, numbered in their order."""
    part = some_part(len(costs_s))
    return [Task(part, item, cost) for item, cost in enumerate(costs_s)]


def hello(number: int) -> Hello:
    """A maker that has read the right configuration."""
    return Hello("node", 1000 + number, FINGERPRINT)


@dataclass
class ModelMaker:
    """What `Maker` says and when, without making anything. Two processes of one number share its `disk`."""

    number: int
    per_shard: int
    disk: list[ItemKey] = field(default_factory=list)
    outbox: deque[FromMaker] = field(default_factory=deque)
    inbox: deque[ToMaker] = field(default_factory=deque)
    tasks: deque[Task] = field(default_factory=deque)
    under_way: Task | None = None
    open_shard: list[ItemKey] = field(default_factory=list)
    asked: bool = False
    ended: bool = False
    stopping: bool = False

    def start(self) -> None:
        """Say hello."""
        self.outbox.append(hello(self.number))

    def read(self) -> None:
        """Take what has come, as between two items; want more where nothing is left."""
        while self.inbox:
            message = self.inbox.popleft()
            if isinstance(message, Assign):
                self.tasks.extend(message.tasks)
                self.asked = False
            elif isinstance(message, Seal):
                self.seal()
                self.outbox.append(AllSealed())
            elif isinstance(message, Stop):
                self.stopping = True
        if not self.tasks and not self.stopping:
            self._ask()

    def begin(self, *, ask_early: bool) -> Task:
        """Begin the next item."""
        self.under_way = self.tasks.popleft()
        self.outbox.append(Begun(self.under_way.key))
        if ask_early and not self.tasks:
            self._ask()
        return self.under_way

    def finish(self, seconds: float = 1.0) -> None:
        """The item under way is made; the one that fills a shard is sealed before it is told as made."""
        key = self._leave()
        self.open_shard.append(key)
        if len(self.open_shard) >= self.per_shard:
            self.seal()
        self.outbox.append(Made(key, seconds))

    def fail(self) -> None:
        """The item under way cannot be made."""
        self.outbox.append(Failure(*self._leave(), "Po-sc", "it will not be", "fault"))

    def seal(self) -> None:
        """Seal the open shard."""
        keys, self.open_shard = tuple(self.open_shard), []
        if keys:
            self.disk.extend(keys)
            self.outbox.append(Sealed(keys))

    def end(self, signal: int = 0) -> None:
        """Drop what is under way, seal, and end, as after a stop."""
        if self.under_way is not None:
            self.outbox.append(PutBack(self._leave()))
        self.seal()
        self.outbox.append(Ended(signal))
        self.ended = True

    def _ask(self) -> None:
        if not self.asked:
            self.asked = True
            self.outbox.append(Want())

    def _leave(self) -> ItemKey:
        assert self.under_way is not None
        key, self.under_way = self.under_way.key, None
        return key


class Disorder:
    """A run whose every step is drawn at random: whose message comes next, who dies, who hangs and comes back.

    Checks at each step that no item is in the hands of two makers that count as alive, and that none is forgotten.
    losses: how many processes die or hang. deadly: items that end every process that makes them.
    """

    def __init__(self, seed: int, *, items: int, makers: int, losses: int, deadly: Sequence[int] = ()) -> None:
        self.rng = random.Random(seed)
        self.tasks = tasks_of([self.rng.choice((0.1, 1.0, 3.0)) for _ in range(items)])
        self.coordinator = Coordinator(
            self.tasks, range(makers), item_timeout_s=60.0, maker_timeout_s=120.0, now=0.0, fingerprint=FINGERPRINT
        )
        self.per_shard = self.rng.randint(1, 5)
        self.disks: dict[int, list[ItemKey]] = {number: [] for number in range(makers)}
        self.losses_left = losses
        self.deadly = {self.tasks[item].key for item in deadly}
        self.deaths: Counter[ItemKey] = Counter()
        self.owner: dict[ItemKey, ModelMaker] = {}
        self.zombies: list[ModelMaker] = []
        self.alive: dict[int, ModelMaker] = {}
        for number in range(makers):
            self._start(number)

    def run(self) -> None:
        """To the end, which has to come."""
        for _ in range(20_000):
            if self.coordinator.finished:
                return
            self.step()
        raise AssertionError(f"no end: {self.coordinator.unfinished} items left, {self.coordinator.makers}")

    def step(self) -> None:
        """One event."""
        everybody = [*self.alive.values(), *self.zombies]
        speaking = [maker for maker in everybody if maker.outbox]
        if self.losses_left and self.alive and self.rng.random() < 0.04:
            self.losses_left -= 1
            self.lose(self.rng.choice(list(self.alive.values())), may_hang=True)
        elif speaking and self.rng.random() < 0.5:
            self.hear(self.rng.choice(speaking))
        elif everybody:
            self.act(self.rng.choice(everybody))

    def act(self, maker: ModelMaker) -> None:
        """A maker does the next thing it would do."""
        if maker.ended:
            return
        if maker.under_way is None:
            maker.read()
            if maker.stopping:
                maker.end()
            elif maker.tasks:
                maker.begin(ask_early=self.rng.random() < 0.5)
        elif maker.under_way.key in self.deadly:
            self.deaths[maker.under_way.key] += 1
            self.lose(maker, may_hang=False)
        elif self.rng.random() < 0.1:
            maker.fail()
        else:
            maker.finish()

    def lose(self, maker: ModelMaker, *, may_hang: bool) -> None:
        """Its process is killed, with what it had said or without; or it hangs, and comes back as one given up."""
        if maker in self.zombies:
            self.zombies.remove(maker)
            return
        number = maker.number
        hangs = may_hang and self.rng.random() < 0.5
        if hangs:
            self.zombies.append(maker)
        elif self.deadly or self.rng.random() < 0.5:
            while maker.outbox:  # the pipe still holds it
                self.hear(maker)
        del self.alive[number]
        self._disown(maker)
        was_at_work = self.coordinator.makers[number].at_work
        sealed = self.disks[number] if self.rng.random() < 0.8 else []  # the disk may be another node's
        self.send(self.coordinator.handle(number, Lost("was killed", tuple(sealed)), 0.0))
        can_start = not hangs and (self.deadly or self.rng.random() < 0.7)
        if was_at_work and not self.coordinator.stopping and can_start:
            self.coordinator.join(number, 0.0)
            self._start(number)
        self.check()

    def hear(self, maker: ModelMaker) -> None:
        """The coordinator gets the next message of a maker, unless another has its number by now."""
        message = maker.outbox.popleft()
        if self.alive.get(maker.number, maker) is not maker:
            return
        if isinstance(message, Failure | PutBack) and self.owner.get(message.key) is maker:
            del self.owner[message.key]
        if isinstance(message, Ended):
            self._disown(maker)
        self.send(self.coordinator.handle(maker.number, message, 0.0))
        self.check()

    def send(self, sendings: Sequence[Sending]) -> None:
        """What the coordinator says arrives at once."""
        for number, message in sendings:
            assert number in self.alive, f"maker {number}, which is gone, is told {message}"
            for task in message.tasks if isinstance(message, Assign) else ():
                owner = self.owner.get(task.key)
                assert owner is None, f"{task.key} is given to {number}, and {owner} has it"
                self.owner[task.key] = self.alive[number]
            self.alive[number].inbox.append(message)

    def check(self) -> None:
        """Every item is somewhere, and in one place."""
        coordinator = self.coordinator
        places: Counter[ItemKey] = Counter(task.key for task in coordinator._queue)
        for maker in coordinator.makers.values():
            places.update(maker.held.keys())
            places.update(maker.unsealed.keys())
        twice = [key for key, count in places.items() if count > 1]
        assert not twice, f"in two places: {twice}"
        missing = {task.key for task in self.tasks} - places.keys() - self.settled
        assert not missing, f"forgotten: {missing}"
        on_disk = {key for disk in self.disks.values() for key in disk}
        assert coordinator.sealed <= on_disk, f"not sealed by anybody: {coordinator.sealed - on_disk}"

    @property
    def settled(self) -> set[ItemKey]:
        """Items that need not be made any more."""
        return self.coordinator.sealed | {failure.key for failure in self.coordinator.failures}

    def _start(self, number: int) -> None:
        self.alive[number] = ModelMaker(number, self.per_shard, self.disks[number])
        self.alive[number].start()

    def _disown(self, maker: ModelMaker) -> None:
        self.owner = {key: owner for key, owner in self.owner.items() if owner is not maker}


@dataclass
class Works:
    """Makers on a clock of events: how long a set takes, and how long makers wait.

    costs_s: as estimated. true_s: what each item takes. starts_s: when each maker says hello. latency_s: of a message.
    """

    costs_s: Sequence[float]
    true_s: Sequence[float]
    starts_s: Sequence[float]
    latency_s: float = 0.005
    per_shard: int = 8
    idle_since: dict[int, float] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    _events: list[tuple[float, int, int, FromMaker | ToMaker | str]] = field(default_factory=list)
    _tickets: int = 0

    def run(self) -> float:
        """Returns the share of the makers' time, from the first item to the last, that came after their last item."""
        coordinator = Coordinator(
            tasks_of(self.costs_s), range(len(self.starts_s)), item_timeout_s=1e9, maker_timeout_s=1e9, now=0.0,
            fingerprint=FINGERPRINT,
        )  # fmt: skip
        makers = {number: ModelMaker(number, self.per_shard) for number in range(len(self.starts_s))}
        for number, start_s in enumerate(self.starts_s):
            self._at(start_s, number, "start")
        while self._events:
            now, _, number, what = heapq.heappop(self._events)
            if isinstance(what, FromMaker):
                for to, message in coordinator.handle(number, what, now):
                    self._at(now + self.latency_s, to, message)
            else:
                self._act(makers[number], what, now)
        assert coordinator.finished
        assert len(coordinator.sealed) == len(self.costs_s)
        end = max(self.idle_since.values())
        idle_s = sum(end - since for since in self.idle_since.values())
        return idle_s / ((end - min(self.starts_s)) * len(self.starts_s))

    def _act(self, maker: ModelMaker, what: ToMaker | str, now: float) -> None:
        if what == "start":
            maker.start()
        elif what == "made":
            assert maker.under_way is not None
            self.order.append(maker.under_way.item)
            self.idle_since[maker.number] = now
            maker.finish(self.true_s[maker.under_way.item])
        else:
            assert not isinstance(what, str)
            maker.inbox.append(what)
        if maker.under_way is None and not maker.ended:
            maker.read()
            if maker.stopping:
                maker.end()
            elif maker.tasks:
                task = maker.begin(ask_early=maker.tasks[0].estimated_s < 1.0)
                self._at(now + self.true_s[task.item], maker.number, "made")
        while maker.outbox:
            self._at(now + self.latency_s, maker.number, maker.outbox.popleft())

    def _at(self, when: float, number: int, what: FromMaker | ToMaker | str) -> None:
        self._tickets += 1  # events of one moment keep their order
        heapq.heappush(self._events, (when, self._tickets, number, what))
