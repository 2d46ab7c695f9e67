"""Crystals: the built-in library, CIF files, the checks, and the split into seen and unseen materials."""

from data_gen.materials.cif import read_cif
from data_gen.materials.cif_folder import read_cif_folder
from data_gen.materials.collection import collect, split_by_material
from data_gen.materials.crystal import BadCrystal, Crystal, check_crystal
from data_gen.materials.library import library

__all__ = [
    "BadCrystal",
    "Crystal",
    "check_crystal",
    "collect",
    "library",
    "read_cif",
    "read_cif_folder",
    "split_by_material",
]
