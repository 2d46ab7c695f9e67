"""The built-in crystals: the rows of all tables, built once per process."""

from __future__ import annotations

import functools

from data_gen.materials.crystal import Crystal
from data_gen.materials.prototypes import build
from data_gen.materials.tables import TABLES


@functools.lru_cache(maxsize=1)
def library() -> tuple[Crystal, ...]:
    """All built-in crystals, sorted by name; the same objects at every call.

    The tests run ``check_crystal`` and physical checks on every one; here only the time to build them is spent.
    """
    crystals = [build(row, prototypes[row.prototype]) for prototypes, rows in TABLES for row in rows]
    names = [crystal.name for crystal in crystals]
    assert len(set(names)) == len(names), f"two rows are called {sorted(n for n in names if names.count(n) > 1)}"
    return tuple(sorted(crystals, key=lambda crystal: crystal.name))
