"""What the tests of the coordinator share."""

from __future__ import annotations

from collections.abc import Sequence

from data_gen.sharing.coordinator import Coordinator, Sending
from data_gen.sharing.messages import (
    Assign,
    Begun,
    ItemKey,
    Made,
)
from sharing_cases import FINGERPRINT, hello, tasks_of


def coordinator_of(costs_s: Sequence[float], makers: int = 2, *, all_first: bool = False) -> Coordinator:
    """All makers have said hello and wait, unless `all_first`."""
    coordinator = Coordinator(
        tasks_of(costs_s), range(makers), item_timeout_s=100.0, maker_timeout_s=50.0, now=0.0, fingerprint=FINGERPRINT,
        all_first=all_first,
    )  # fmt: skip
    if not all_first:
        for number in range(makers):
            assert coordinator.handle(number, hello(number), 0.0) == []
    return coordinator


def items(sendings: Sequence[Sending]) -> dict[int, list[int]]:
    """Who gets which items."""
    return {to: [task.item for task in message.tasks] for to, message in sendings if isinstance(message, Assign)}


def key(item: int) -> ItemKey:
    return "train", item


def make(coordinator: Coordinator, number: int, item: int, *, now: float = 1.0) -> list[Sending]:
    """A maker begins and makes an item; it stays in the open shard."""
    return coordinator.handle(number, Begun(key(item)), now) + coordinator.handle(number, Made(key(item), 1.0), now)
