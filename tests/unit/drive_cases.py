"""What the tests of the drive share."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from data_gen.sharing.coordinator import Coordinator
from data_gen.sharing.drive import Drive, Outcome
from data_gen.sharing.messages import (
    Failure,
    FromMaker,
    ItemKey,
    Lost,
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


class Hours:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        """Now."""
        return self.now_s
