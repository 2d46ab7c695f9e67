"""The tables of the crystal library, one module per family, each with its ``PROTOTYPES`` and ``ROWS``.

Lattice constants in Å at room temperature, as commonly quoted from the source named in each row. They are meant for
realistic training structures (right to about 0.5 %), not for metrology; tests compare densities and bond lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from data_gen.materials.prototypes import Prototype, Row
from data_gen.materials.tables import intermetallics, ionic, layered, metals, minerals, oxides, perovskites, tetrahedral

TABLES: tuple[tuple[Mapping[str, Prototype], Sequence[Row]], ...] = tuple(
    (module.PROTOTYPES, module.ROWS)
    for module in (intermetallics, ionic, layered, metals, minerals, oxides, perovskites, tetrahedral)
)
"""Prototypes and rows of each family."""
