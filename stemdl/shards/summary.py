"""What a folder of shards holds, in numbers: by rank, by crystal, by parameter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from stemdl.shards.h5_read import ShardFile
from stemdl.shards.manifest import ManifestEntry
from stemdl.shards.schema import ShardError, parse_shard_name


@dataclass
class RankShare:
    """What one rank wrote."""

    shards: int = 0
    samples: int = 0
    bytes: int = 0


@dataclass
class SetSummary:
    """Totals of a folder; what comes from inside the shards is empty where they were not opened."""

    shards: int = 0
    samples: int = 0
    bytes: int = 0
    config_hashes: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    """As the lines of the manifest and the opened shards say."""
    ranks: dict[int, RankShare] = field(default_factory=dict)
    crystals: Counter[str] = field(default_factory=Counter)
    """Samples by crystal."""
    materials: Counter[str] = field(default_factory=Counter)
    """Samples by formula."""
    parameters: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Smallest and largest value of each column of /parameters."""
    not_read: list[str] = field(default_factory=list)
    """Shards that could not be opened, with the reason."""

    def as_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        ranks = {str(rank): asdict(share) for rank, share in self.ranks.items()}
        return {**plain, "ranks": ranks, "crystals": dict(self.crystals), "materials": dict(self.materials)}


def summarise(
    folder: Path,
    entries: Sequence[ManifestEntry],
    *,
    open_shards: bool = True,
    on_shard: Callable[[int], None] = lambda done: None,
) -> SetSummary:
    """Add up a folder's manifest and, unless `open_shards` is off, the small columns of each shard.

    A shard that cannot be opened is named in `not_read`, and counted by its line alone. `on_shard` is told how many are
    done.
    """
    summary = SetSummary(config_hashes=list(dict.fromkeys(entry.config_hash for entry in entries)))
    summary.parts = sorted({entry.part for entry in entries if entry.part})
    for done, entry in enumerate(entries, start=1):
        place = parse_shard_name(entry.file)
        assert place is not None, "a manifest names shards alone"
        for total in (summary, summary.ranks.setdefault(place[0], RankShare())):
            total.shards += 1
            total.samples += entry.count
            total.bytes += entry.bytes
        if open_shards:
            try:
                _add_columns(summary, folder / entry.file)
            except ShardError as error:
                summary.not_read.append(str(error))
        on_shard(done)
    return summary


def _add_columns(summary: SetSummary, path: Path) -> None:
    """All or nothing of one shard."""
    shard = ShardFile(path)
    try:
        records = [shard.provenance(row) for row in range(shard.count)]
        parameters = [shard.parameters(row) for row in range(shard.count)]
    finally:
        shard.close()
    if shard.part and shard.part not in summary.parts:
        summary.parts.append(shard.part)
    summary.crystals.update(str(record["crystal"]) for record in records)
    summary.materials.update(str(record.get("formula", "?")) for record in records)
    for name in parameters[0]:
        values = [row[name] for row in parameters]
        low, high = summary.parameters.get(name, (values[0], values[0]))
        summary.parameters[name] = min(low, *values), max(high, *values)
