"""What a lost maker has sealed without a word: killed between the shard's last line and its message."""

from __future__ import annotations

from pathlib import Path

from data_gen.sample import axes_of
from data_gen.sharing.messages import ItemKey
from data_gen.sharing.vault import PARTS
from stemdl.config import Config
from stemdl.shards import ShardWriter, ranks_left_behind, read_manifest
from stemdl.shards.locks import lock_name
from stemdl.shards.schema import parse_shard_name


def sealed_by(config: Config, config_hash: str, number: int, *, is_dead: bool) -> tuple[ItemKey, ...]:
    """Items in the run folder's shards of one maker, so that nobody makes them again.

    A shard that the maker could not enter into the manifest any more is entered now, if it is dead: a living one holds
    the lock of its shards. With shards on nodes the node's next job does that. Raises ShardError.
    """
    found: list[ItemKey] = []
    for part in PARTS:
        folder = config.run.folder / "shards" / part
        if not folder.is_dir():
            continue
        if is_dead and not config.burst_buffer.use and _has_left(folder, number):
            with ShardWriter(folder, rank=number, axes=axes_of(config), config_hash=config_hash, samples_per_shard=1):
                pass
        for entry in read_manifest(folder):
            name = parse_shard_name(entry.file)
            if name is not None and name[0] == number:
                found += [(part, item) for item in entry.items]
    return tuple(found)


def _has_left(folder: Path, number: int) -> bool:
    return (folder / lock_name(number)).exists() or number in ranks_left_behind(folder)
