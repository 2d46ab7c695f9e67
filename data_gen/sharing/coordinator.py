"""Who makes what: hands items out by estimated cost, largest first, and takes them back from makers that are lost.

No clock, no process and no channel in here: every event comes in with its time, and what is to be sent is returned.
Largest first leaves the small ones for the end, when they fill the gaps (Graham, SIAM J. Appl. Math. 17, 416 (1969)).
Small items go out several at a time, but never more than a quarter of a maker's share of what is left (guided
self-scheduling: Polychronopoulos and Kuck, IEEE Trans. Comput. C-36, 1425 (1987)).
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from data_gen.sharing.messages import (
    AllSealed,
    Assign,
    Begun,
    Broken,
    Ended,
    Failure,
    Found,
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

Sending = tuple[int, ToMaker]
"""A maker and what it is to be told."""

MOST_ENDED_PROCESSES = 2
"""An item under way in so many processes that were lost is given up: it may well be what ends them."""

SIGNAL_GRACE_S = 20.0
"""How long an item under way may take where a signal announces the end of the job."""

START_TIMEOUT_S = 300.0
"""How long a maker may take to load its libraries, which thousands may do at once from one file system."""

_BROKEN_GRACE_S = 5.0
_LONGEST_BATCH_S = 20.0
_MOST_ITEMS_AT_ONCE = 64
_LONGEST_TURN_S = 5.0  # between two looks at who is silent; more is time in which nobody was listened to
_HANG_GRACE_S = 30.0  # an item beyond its time is ended by its own maker; one that does not manage to is lost


@dataclass
class MakerState:
    """What is known of one maker. Times in s on the coordinator's clock."""

    seen: float
    host: str = ""
    held: dict[ItemKey, Task] = field(default_factory=dict)
    """Handed out and not made yet, in order."""
    unsealed: dict[ItemKey, Task] = field(default_factory=dict)
    begun: ItemKey | None = None
    begun_at: float = 0.0
    waiting: bool = False
    """It has asked, and nothing was there to give."""
    told_to_seal: bool = False
    ended: bool = False
    lost: str = ""
    """Why it counts as lost."""
    busy_s: float = 0.0
    made: int = 0
    idle_since: float = 0.0

    @property
    def at_work(self) -> bool:
        """Whether anything can still come of it."""
        return not (self.ended or self.lost)


class Coordinator:
    """The state of one run of the simulation over a number of makers.

    tasks: to be done, in any order. makers: their numbers. item_timeout_s, maker_timeout_s: after which a maker counts
    as hung, or as gone. fingerprint: of the configuration, which all makers must have read.
    all_first: hand nothing out before every maker has said hello; one of them may have found items that are done.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        makers: Sequence[int],
        *,
        item_timeout_s: float,
        maker_timeout_s: float,
        now: float,
        fingerprint: str = "",
        all_first: bool = False,
    ) -> None:
        self._queue = deque(sorted(tasks, key=lambda task: (-task.estimated_s, task.key)))
        self._queue_s = sum(task.estimated_s for task in self._queue)
        self._item_timeout_s = item_timeout_s
        self._maker_timeout_s = maker_timeout_s
        self._fingerprint = fingerprint
        self._all_first = all_first
        self._ended_processes: dict[ItemKey, int] = {}
        self.makers = {number: MakerState(now) for number in makers}
        # Kept as numbers: with ten thousand makers nothing may look at all of them at every message.
        self._alive = len(self.makers)
        self._ungreeted = set(self.makers)
        self._outstanding = 0
        self.failures: list[Failure] = []
        self.sealed: set[ItemKey] = set()
        self.signal = 0
        self.broken: list[Broken] = []
        self.stopping = False
        self.began = self._looked_at = now

    def join(self, maker: int, now: float) -> None:
        """A new process in the place of a lost one."""
        self.makers[maker] = MakerState(now)
        self._alive += 1
        self._ungreeted.add(maker)

    @property
    def unfinished(self) -> int:
        """Items not sealed and not failed."""
        return len(self._queue) + sum(len(maker.held) + len(maker.unsealed) for maker in self.makers.values())

    @property
    def made(self) -> int:
        """Items made, sealed or not."""
        return len(self.sealed) + sum(len(maker.unsealed) for maker in self.makers.values() if maker.at_work)

    @property
    def finished(self) -> bool:
        """Whether nothing more can happen."""
        return self._alive == 0

    def left_s(self) -> float:
        """Estimated seconds of work of one maker that are not made yet."""
        held = sum(task.estimated_s for maker in self.makers.values() for task in maker.held.values())
        return self._queue_s + held

    def handle(self, number: int, message: FromMaker, now: float) -> list[Sending]:
        """Take one message of a maker; returns what is to be sent."""
        maker = self.makers[number]
        if not maker.at_work:
            # A maker that was given up and has come back: what it sealed meanwhile is sealed.
            if isinstance(message, Sealed):
                self._mark_sealed(maker, message.keys)
            return []
        maker.seen = now
        match message:
            case Hello():
                return self._greet(number, maker, message)
            case Want():
                maker.waiting = True
                return self._give(number)
            case Begun(key):
                maker.begun, maker.begun_at, maker.told_to_seal = key, now, False
            case Sealed() | AllSealed() | Found():
                self._note_sealed(number, maker, message)
            case Made() | Failure() | PutBack():
                self._end_item(maker, message, now)
            case Ended() | Broken():
                return self._end_maker(number, maker, message)
            case Lost(reason, sealed):
                self._mark_sealed(maker, sealed)
                return self._lose(number, reason)
        return self._wind_up(number) if not self._queue else []

    def _note_sealed(self, number: int, maker: MakerState, message: Sealed | AllSealed | Found) -> None:
        if isinstance(message, Sealed):
            self._mark_sealed(maker, message.keys)
        elif isinstance(message, Found):
            self._forget(set(message.keys))
        else:
            assert not maker.unsealed, f"rank {number} has sealed all, but not {sorted(maker.unsealed)}"

    def _end_item(self, maker: MakerState, message: Made | Failure | PutBack, now: float) -> None:
        task = maker.held.pop(message.key)
        seconds = now - maker.begun_at
        if isinstance(message, Made) and task.key not in self.sealed:
            maker.unsealed[task.key] = task
        else:
            self._outstanding -= 1
        if isinstance(message, Made):  # the one that fills a shard is sealed before it is told as made
            seconds = message.seconds
        elif isinstance(message, Failure):
            self.failures.append(message)
        else:
            self._put_back([task])
        maker.begun = None
        maker.busy_s += seconds
        maker.made += 1
        maker.idle_since = now

    def _end_maker(self, number: int, maker: MakerState, message: Ended | Broken) -> list[Sending]:
        maker.ended = True
        self._alive -= 1
        self._ungreeted.discard(number)
        self._put_back(self._take_all(maker))
        if isinstance(message, Broken):
            self.broken.append(message)
            return self.stop(grace_s=_BROKEN_GRACE_S)
        # SIGUSR2 says that the job's time is over; SIGTERM to one rank alone leaves its items to the others.
        if message.signal == signal.SIGUSR2 or (message.signal and number == 0):
            self.signal = self.signal or message.signal
            return self.stop(grace_s=SIGNAL_GRACE_S)
        return self._give_to_waiting()

    def overdue(self, now: float) -> list[tuple[int, Lost]]:
        """Makers that hang or are gone: to be ended, where that can be, and then handed in as lost."""
        self._count_as_heard(now - self._looked_at - _LONGEST_TURN_S, now)
        self._looked_at = now
        found: list[tuple[int, Lost]] = []
        for number, maker in self.makers.items():
            if not maker.at_work:
                continue
            silent_s, on_item_s = now - maker.seen, now - maker.begun_at
            if silent_s > (self._maker_timeout_s if maker.host else max(START_TIMEOUT_S, self._maker_timeout_s)):
                found.append((number, Lost(f"gave no sign of life for {silent_s:.0f} s")))
            elif maker.begun is not None and on_item_s > self._item_timeout_s + _HANG_GRACE_S:
                part, item = maker.begun
                found.append((number, Lost(f"hangs: {on_item_s:.0f} s at {part} item {item}")))
        return found

    def _count_as_heard(self, pause_s: float, now: float) -> None:
        """A job that was stopped as a whole and goes on, or a disk that held this process up: no maker's fault."""
        if pause_s <= 0:
            return
        for maker in self.makers.values():
            maker.seen = min(now, maker.seen + pause_s)
            if maker.begun is not None:
                maker.begun_at = min(now, maker.begun_at + pause_s)

    def stop(self, *, grace_s: float) -> list[Sending]:
        """Hand out nothing more, and have every maker seal and end."""
        self.stopping = True
        return [(number, Stop(grace_s)) for number, maker in self.makers.items() if maker.at_work]

    def _greet(self, number: int, maker: MakerState, hello: Hello) -> list[Sending]:
        maker.host = hello.host
        self._ungreeted.discard(number)
        if hello.fingerprint == self._fingerprint:
            return self._give_to_waiting() if self._all_first else []
        text = (
            f"rank {number} on {hello.host} reads another configuration than rank 0: do all nodes have the same "
            "file and the same version of stemdl?"
        )
        self.broken.append(Broken(text, is_ours=False))
        return self.stop(grace_s=0.0)

    def _give(self, number: int) -> list[Sending]:
        maker = self.makers[number]
        if self.stopping or (self._all_first and self._ungreeted):
            return []
        if not self._queue:
            return self._wind_up(number)
        most_s = min(_LONGEST_BATCH_S, self._queue_s / (4 * self._alive))
        batch = [self._next()]
        total_s = batch[0].estimated_s
        while self._queue and len(batch) < _MOST_ITEMS_AT_ONCE and total_s + self._queue[0].estimated_s <= most_s:
            batch.append(self._next())
            total_s += batch[-1].estimated_s
        maker.held.update({task.key: task for task in batch})
        self._outstanding += len(batch)
        maker.waiting = maker.told_to_seal = False
        return [(number, Assign(tuple(task.alone() for task in batch)))]

    def _next(self) -> Task:
        task = self._queue.popleft()
        self._queue_s = self._queue_s - task.estimated_s if self._queue else 0.0
        return task

    def _wind_up(self, number: int) -> list[Sending]:
        """Nothing to hand out: an idle maker's open shards are sealed, and when all are, everybody may go.

        Idle makers stay until then: a maker that is lost leaves them its items.
        """
        if self.stopping:
            return []
        if self._outstanding == 0:
            return self.stop(grace_s=0.0)
        maker = self.makers[number]
        if maker.at_work and maker.waiting and maker.unsealed and not maker.held and not maker.told_to_seal:
            maker.told_to_seal = True
            return [(number, Seal())]
        return []

    def _mark_sealed(self, maker: MakerState, keys: Iterable[ItemKey]) -> None:
        keys = set(keys)
        elsewhere = keys - maker.unsealed.keys() - maker.held.keys()
        if elsewhere:  # a lost maker's, which had been put back
            self._forget(elsewhere)
        for key in keys:
            if maker.unsealed.pop(key, None) is not None:
                self._outstanding -= 1
        self.sealed |= keys

    def _take_all(self, maker: MakerState) -> list[Task]:
        tasks = [*maker.held.values(), *maker.unsealed.values()]
        maker.held, maker.unsealed = {}, {}
        self._outstanding -= len(tasks)
        return [task for task in tasks if task.key not in self.sealed]

    def _forget(self, found: set[ItemKey]) -> None:
        """Items that need not be made."""
        self.sealed |= found & {task.key for task in self._queue}
        self._queue = deque(task for task in self._queue if task.key not in found)
        self._queue_s = sum(task.estimated_s for task in self._queue)

    def _put_back(self, tasks: Sequence[Task]) -> None:
        self._queue.extendleft(reversed(tasks))
        self._queue_s += sum(task.estimated_s for task in tasks)

    def _lose(self, number: int, reason: str) -> list[Sending]:
        """Give a lost maker's items to the others, but for one that has ended several processes already."""
        maker = self.makers[number]
        maker.lost = reason
        self._alive -= 1
        self._ungreeted.discard(number)
        culprit = maker.begun
        tasks = self._take_all(maker)
        if culprit is not None:
            self._ended_processes[culprit] = self._ended_processes.get(culprit, 0) + 1
            if self._ended_processes[culprit] >= MOST_ENDED_PROCESSES:
                tasks = [task for task in tasks if not self._give_up(task, culprit, reason)]
        self._put_back(tasks)
        return self._give_to_waiting()

    def _give_to_waiting(self) -> list[Sending]:
        sendings: list[Sending] = []
        for number, maker in self.makers.items():
            if self.stopping:
                break
            if maker.at_work and maker.waiting:
                sendings += self._give(number)
        return sendings

    def _give_up(self, task: Task, culprit: ItemKey, reason: str) -> bool:
        if task.key != culprit:
            return False
        text = f"was under way in {self._ended_processes[culprit]} processes that were lost; the last one {reason}"
        self.failures.append(Failure(*culprit, task.part.crystal_of(task.item).name, text, "rank"))
        return True
