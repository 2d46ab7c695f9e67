"""The processes that train one network together: who does what, and what they tell each other besides gradients."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from stemdl.atomic_files import replace_atomically
from stemdl.comm.errors import CommError
from stemdl.comm.reducer import GradientReducer
from stemdl.comm.world import World
from stemdl.config.comm import Comm
from stemdl.models.scan_physics import FieldPhysics


class Ranks(Protocol):
    """This process among those that train together; `ALONE` is a job of one."""

    rank: int
    size: int
    per_node: int

    def everybody(self, value: Any) -> list[Any]:
        """What every rank gives (JSON-able), by rank, on all of them."""
        ...

    def whole(self, share: NDArray[np.float32], count: int) -> NDArray[np.float32]:
        """(count, ...) from the shares of all ranks: rank r gives rows r, r + size, ...; the same bits on all."""
        ...

    def reducer(self, module: nn.Module) -> GradientReducer | None:
        """What adds up the gradients of a module; None alone."""
        ...

    def write_counters(self, file: Path) -> None:
        """Keep what the exchange has cost, where there was one."""
        ...


class _Alone:
    rank, size, per_node = 0, 1, 1

    def everybody(self, value: Any) -> list[Any]:
        """See `Ranks`."""
        return [value]

    def whole(self, share: NDArray[np.float32], count: int) -> NDArray[np.float32]:
        """See `Ranks`."""
        return share

    def reducer(self, module: nn.Module) -> GradientReducer | None:
        """See `Ranks`."""
        return None

    def write_counters(self, file: Path) -> None:
        """See `Ranks`."""


ALONE: Ranks = _Alone()


class TrainingRanks:
    """The ranks of a job. Rank 0 says when the training begins, or that it does not (`serve`, `begin`, `dismiss`)."""

    def __init__(self, world: World, config: Comm) -> None:
        self._world, self._config = world, config
        self.rank, self.size = world.rank, world.size
        self.per_node = world.topology.local_size or 1
        self.has_begun = False

    def begin(self, fingerprint: str) -> None:
        """All ranks start to train. Raises CommError on all where some have read another configuration."""
        if self.rank == 0:
            self.has_begun = True
            self._world.control.broadcast(b"begin")
        seen = self.everybody(fingerprint)
        others = [rank for rank, one in enumerate(seen) if one != seen[0]]
        if others:
            raise CommError(f"ranks {others[:8]} have read another configuration than rank 0")

    def wait(self) -> bool:
        """On other ranks than the first: whether the training begins; then they call `begin`."""
        return self._world.control.broadcast(None) == b"begin"

    def dismiss(self) -> None:
        """On rank 0, where it comes to no training: the others end."""
        if not self.has_begun:
            self._world.control.broadcast(b"end")

    def everybody(self, value: Any) -> list[Any]:
        """See `Ranks`."""
        return [json.loads(part) for part in self._world.control.allgather(json.dumps(value).encode())]

    def whole(self, share: NDArray[np.float32], count: int) -> NDArray[np.float32]:
        """See `Ranks`. Added up as whole numbers, to which zeros change nothing, not even a sign."""
        full = np.zeros((count, *share.shape[1:]), dtype=np.float32)
        full[self.rank :: self.size] = share
        self._world.transport.everybody.all_reduce(torch.from_numpy(full).view(torch.int32).view(-1))()
        return full

    def reducer(self, module: nn.Module) -> GradientReducer:
        """See `Ranks`."""
        return GradientReducer(module, self._config, world=self._world)

    def write_counters(self, file: Path) -> None:
        """What the exchange of gradients has cost each rank, and how often the watch has warned; rank 0 writes it."""
        ranks = self.everybody(self._world.counters.as_dict())
        if self.rank == 0:
            warnings = 0 if self._world.watch is None else self._world.watch.warnings
            file.parent.mkdir(parents=True, exist_ok=True)
            record = {"negotiation": self._config.negotiation, "stall_warnings": warnings, "ranks": ranks}
            replace_atomically(file, (json.dumps(record, indent=2) + "\n").encode())

    def fail(self, reason: str) -> None:
        """This rank cannot go on: all end, with its reason."""
        self._world.fail(reason)

    def close(self) -> None:
        """The orderly end, on all ranks."""
        self._world.close()


def whole_physics(ranks: Ranks, share: FieldPhysics, count: int) -> FieldPhysics:
    """The physics of all fields, from each rank's own."""
    if ranks.size == 1:
        return share
    pictures = ranks.whole(share.pictures.numpy(), count)
    box = ranks.whole(share.box.numpy(), count)
    return replace(share, pictures=torch.from_numpy(pictures), box=torch.from_numpy(box))


def mine(ranks: Ranks, sequence: NDArray[np.int64]) -> NDArray[np.int64]:
    """This rank's part of a batch, or of anything that ranks share in turn."""
    return sequence[ranks.rank :: ranks.size]


def first_said(texts: Sequence[str]) -> str:
    """The first rank's complaint, or nothing."""
    return next((text for text in texts if text), "")
