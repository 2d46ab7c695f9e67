"""The shard format: sealed HDF5 files of samples, named in a manifest.

`ShardWriter` makes them, `ShardSet` reads them, `read_manifest` and `sealed_items` say what is done.
"""

from __future__ import annotations

from stemdl.shards.manifest import ManifestEntry, drop_lost, read_manifest, sealed_items
from stemdl.shards.reader import ShardSet
from stemdl.shards.recover import ranks_left_behind
from stemdl.shards.schema import SCHEMA_VERSION, Sample, ShardAxes, ShardError
from stemdl.shards.writer import ShardWriter

__all__ = [
    "SCHEMA_VERSION",
    "ManifestEntry",
    "Sample",
    "ShardAxes",
    "ShardError",
    "ShardSet",
    "ShardWriter",
    "drop_lost",
    "ranks_left_behind",
    "read_manifest",
    "sealed_items",
]
