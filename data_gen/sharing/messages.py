"""What the coordinator and those who make samples say to each other."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from data_gen.worklist import Part, PartName

ItemKey = tuple[PartName, int]
"""One item of one part."""

FailureKind = Literal["specimen", "sample", "time", "memory", "fault", "rank"]
"""Why an item was not made: its crystal gives no specimen, the sample is no sound one, it took too long, the memory was
full, this program failed, or it ended the processes that tried it."""

ENDURING: tuple[FailureKind, ...] = ("specimen", "sample")
"""Failures that follow from configuration and number alone: trying again cannot help."""


@dataclass(frozen=True)
class Task:
    """One item to make, and about how long that takes."""

    part: Part
    item: int
    estimated_s: float

    @property
    def key(self) -> ItemKey:
        """Part and number."""
        return self.part.name, self.item

    def alone(self) -> Task:
        """The same with a part that holds the item's crystal alone: a message need not carry all of them."""
        part = dataclasses.replace(self.part, crystals=(self.part.crystal_of(self.item),))
        return dataclasses.replace(self, part=part)


@dataclass(frozen=True)
class Hello:
    """A maker is ready: where it runs, and the fingerprint of what it read as its configuration."""

    host: str
    process: int
    fingerprint: str


@dataclass(frozen=True)
class Found:
    """These items were sealed by an earlier run, where only this maker sees them."""

    keys: tuple[ItemKey, ...]


@dataclass(frozen=True)
class Said:
    """Something worth a line of its own."""

    text: str


@dataclass(frozen=True)
class Assign:
    """Make these, in this order."""

    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class Seal:
    """Nothing is left to hand out: seal what is open, and wait."""


@dataclass(frozen=True)
class Stop:
    """Seal and end; an item under way may take `grace_s` more."""

    grace_s: float


@dataclass(frozen=True)
class Want:
    """Give me more: either none is left here, or the last one has begun."""


@dataclass(frozen=True)
class Begun:
    """An item has begun."""

    key: ItemKey


@dataclass(frozen=True)
class Made:
    """An item is in the open shard."""

    key: ItemKey
    seconds: float


@dataclass(frozen=True)
class Failure:
    """An item that was not made, and why."""

    part: PartName
    item: int
    crystal: str
    reason: str
    kind: FailureKind = "specimen"

    @property
    def key(self) -> ItemKey:
        """Part and number."""
        return self.part, self.item


@dataclass(frozen=True)
class PutBack:
    """An item that was begun and dropped because of a stop."""

    key: ItemKey


@dataclass(frozen=True)
class Sealed:
    """These items are in a sealed shard."""

    keys: tuple[ItemKey, ...]


@dataclass(frozen=True)
class AllSealed:
    """No shard is open here: the answer to Seal."""


@dataclass(frozen=True)
class Alive:
    """A sign of life."""


@dataclass(frozen=True)
class Ended:
    """A maker has sealed everything and ends; `signal` is what made it, if it was one."""

    signal: int = 0


@dataclass(frozen=True)
class Broken:
    """A maker cannot go on; `is_ours` where that is a fault of this program."""

    text: str
    is_ours: bool


@dataclass(frozen=True)
class Lost:
    """Said by the transport: a maker is gone without a word; `sealed` is what it has sealed, said or not."""

    reason: str
    sealed: tuple[ItemKey, ...] = ()


ToMaker = Assign | Seal | Stop
FromMaker = (
    Hello | Found | Said | Want | Begun | Made | Failure | PutBack | Sealed | AllSealed | Alive | Ended | Broken | Lost
)
