"""What is refused as a crystal; split positions; the crystals of a run and their split into seen and unseen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data_gen.materials import BadCrystal, Crystal, check_crystal, collect, library, split_by_material
from data_gen.materials.disorder import exclusive_groups

CELL = 4.0 * np.eye(3)
NACL = (((11, 1.0),), ((17, 1.0),))


def crystal(
    cell: object = CELL,
    fractional: object = ((0.0, 0.0, 0.0), (0.5, 0.5, 0.5)),
    species: object = NACL,
    formula: str = "NaCl",
    name: str = "test",
) -> Crystal:
    return Crystal(name, formula, "test", np.array(cell), np.array(fractional), species, "test")  # type: ignore[arg-type]


def two(distance_angstrom: float, first: int, second: int, occupancy: float = 1.0) -> Crystal:
    positions = ((0.0, 0.0, 0.0), (distance_angstrom / 4.0, 0.0, 0.0))
    return crystal(fractional=positions, species=(((first, occupancy),), ((second, occupancy),)))


BAD: list[tuple[Callable[[], Crystal], str]] = [
    (lambda: crystal(cell=np.full((3, 3), np.nan)), "not three finite vectors"),
    (lambda: crystal(cell=np.eye(2)), "not three finite vectors"),
    (lambda: crystal(cell=np.diag([4.0, np.inf, 4.0])), "not three finite vectors"),
    (lambda: crystal(cell=np.diag([4.0, 4.0, 0.0])), "cell vector c has zero length"),
    (lambda: crystal(cell=[[4, 0, 0], [0, 4, 0], [4, 4, 0]]), "lie in one plane"),
    (lambda: crystal(cell=np.diag([4.0, 4.0, 0.3])), "0.3 Å thin"),
    (lambda: crystal(fractional=np.zeros((0, 3)), species=()), "holds no atoms"),
    (lambda: crystal(fractional=np.zeros((3, 3))), "do not fit 2 sites"),
    (lambda: crystal(fractional=((0, 0, 0), (np.nan, 0, 0))), "site 1 has coordinates"),
    (lambda: crystal(species=(((11, 1.0),), ())), "site 1 names no element"),
    (lambda: crystal(species=(((11, 1.0),), ((0, 1.0),))), "unknown element of atomic number 0"),
    (lambda: crystal(species=(((104, 1.0),), ((17, 1.0),))), "unknown element of atomic number 104"),
    (lambda: crystal(species=(((11, 0.0),), ((17, 1.0),))), "occupancy 0, outside"),
    (lambda: crystal(species=(((11, -0.5),), ((17, 1.0),))), "occupancy -0.5, outside"),
    (lambda: crystal(species=(((11, float("nan")),), ((17, 1.0),))), "occupancy nan, outside"),
    (lambda: crystal(species=(((11, 0.7), (19, 0.7)), ((17, 1.0),))), "Na 0.7 + K 0.7"),
    (lambda: two(0.7, 11, 17), "atoms overlap: Na (site 0) and Cl (site 1) are 0.700 Å apart"),
    (lambda: two(3.6, 11, 17), "are 0.400 Å apart"),  # through the cell face
    (lambda: two(0.4, 1, 8), "are 0.400 Å apart"),
    (lambda: two(0.3, 11, 17, occupancy=0.8), "are 0.300 Å apart"),  # 0.8 + 0.8 does not fit into one position
    (lambda: crystal(cell=np.diag([0.6, 4.0, 4.0])), "Na (site 0) and Na (site 0) are 0.600 Å apart"),
]


@pytest.mark.parametrize(("make", "said"), BAD)
def test_what_is_no_crystal_is_refused_by_name_with_the_reason(make: Callable[[], Crystal], said: str) -> None:
    with pytest.raises(BadCrystal) as error:
        check_crystal(make())
    assert error.value.name == "test"
    assert said in error.value.reason
    assert str(error.value) == f"test: {error.value.reason}"


def test_what_is_a_crystal_passes() -> None:
    check_crystal(crystal())
    check_crystal(crystal(species=(((11, 0.4), (19, 0.4)), ((17, 1.0),))))  # a vacancy remains
    check_crystal(two(0.7, 1, 8))  # an O-H bond as X-rays see it
    check_crystal(two(0.3, 11, 17, occupancy=0.5))  # one atom in one of two positions
    check_crystal(crystal(cell=np.diag([4.0, 4.0, -4.0])))  # left-handed


def test_overlap_is_found_in_a_skewed_cell() -> None:
    """The near image lies in another cell than the one that rounding the fractional difference finds."""
    cell = np.array([[3.0, 0.0, 0.0], [9.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
    with pytest.raises(BadCrystal, match=r"are 0\.500 Å apart"):
        check_crystal(crystal(cell=cell, fractional=((0, 0, 0), (0.25, 0.25, 0.0))))


def test_arrays_are_private_and_read_only() -> None:
    cell = np.array(CELL)
    made = crystal(cell=cell)
    cell[0, 0] = 99.0
    assert made.cell_angstrom[0, 0] == 4.0
    with pytest.raises(ValueError, match="read-only"):
        made.fractional[0, 0] = 1.0


def test_the_hash_follows_the_structure_not_the_name() -> None:
    assert crystal().structure_sha256() == crystal(name="other").structure_sha256()
    assert crystal().structure_sha256() != crystal(cell=4.0001 * np.eye(3)).structure_sha256()
    assert crystal().structure_sha256() != crystal(species=(((11, 0.9),), ((17, 1.0),))).structure_sha256()


def test_density_counts_occupancy() -> None:
    assert crystal().density_atoms_per_a3() == pytest.approx(2 / 64)
    assert crystal(species=(((32, 0.4), (51, 0.4)), ((52, 1.0),))).density_atoms_per_a3() == pytest.approx(1.8 / 64)


def test_split_positions_are_grouped_through_the_cell_face() -> None:
    half = ((8, 0.5),)
    positions = np.array([[0.02, 0.5, 0.5], [0.95, 0.5, 0.5], [0.5, 0.5, 0.5], [0.6, 0.5, 0.5], [0.5, 0.0, 0.0]])
    groups = exclusive_groups(CELL, positions, (half, half, half, half, ((8, 1.0),)))
    assert groups.of_site[0] == groups.of_site[1]
    assert groups.of_site[2] == groups.of_site[3]
    assert len(set(groups.of_site.tolist())) == 3
    step = (groups.fractional[1] - groups.fractional[0]) @ CELL
    np.testing.assert_allclose(step, [-0.28, 0.0, 0.0], atol=1e-12)


def test_three_alternatives_fit_and_four_halves_do_not() -> None:
    third, half = ((9, 1 / 3),), ((9, 0.5),)
    positions = np.array([[0.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.05, 0.08, 0.0], [0.05, -0.08, 0.0]])
    assert len(set(exclusive_groups(CELL, positions[:3], (third,) * 3).of_site.tolist())) == 1
    assert len(set(exclusive_groups(CELL, positions, (half,) * 4).of_site.tolist())) == 2


def test_a_chain_of_positions_is_no_group_of_alternatives() -> None:
    """The ends of the chain are far enough apart to be occupied together."""
    positions = np.array([[0.0, 0.0, 0.0], [0.2, 0.0, 0.0], [0.4, 0.0, 0.0]])
    groups = exclusive_groups(CELL, positions, (((9, 0.3),),) * 3)
    assert groups.of_site[0] != groups.of_site[2]


def test_alternatives_that_also_meet_the_next_cell_are_refused() -> None:
    """Drawn cell by cell, the second position of one cell and the first of the next could both be occupied."""
    half = ((9, 0.5),)
    chain = crystal(np.diag([0.9, 4.0, 4.0]), ((0.0, 0.0, 0.0), (0.5, 0.0, 0.0)), (half, half))
    with pytest.raises(BadCrystal, match=r"are 0\.450 Å apart"):
        check_crystal(chain)


def _many() -> list[Crystal]:
    return [crystal(formula=f"X{index // 2}", name=f"n{index}") for index in range(80)]


def test_split_keeps_polymorphs_together_and_loses_none() -> None:
    train, held_out = split_by_material(_many(), 0.2, seed=3)
    assert len({c.formula for c in held_out}) == 8
    assert not {c.formula for c in train} & {c.formula for c in held_out}
    assert sorted(c.name for c in train + held_out) == sorted(c.name for c in _many())


def test_split_depends_on_the_seed_and_the_formulas_alone() -> None:
    def held(crystals: list[Crystal], seed: int) -> set[str]:
        return {c.formula for c in split_by_material(crystals, 0.25, seed)[1]}

    assert held(_many(), 1) == held(list(reversed(_many())), 1) == held(_many(), 1)
    assert held(_many(), 1) != held(_many(), 2)


def test_split_of_the_library_puts_all_polymorphs_on_one_side() -> None:
    train, held_out = split_by_material(library(), 0.3, seed=0)
    assert len({c.formula for c in held_out}) == round(0.3 * len({c.formula for c in library()}))
    sides = {c.formula: set[str]() for c in library()}
    for side, crystals in (("train", train), ("held out", held_out)):
        for c in crystals:
            sides[c.formula].add(side)
    assert all(len(side) == 1 for side in sides.values())


def test_split_limits() -> None:
    assert split_by_material(_many(), 0.0, seed=0)[1] == []
    assert len({c.formula for c in split_by_material(_many(), 1e-6, seed=0)[1]}) == 1
    assert len({c.formula for c in split_by_material(_many(), 0.9999, seed=0)[0]}) == 1
    for fraction in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="held_out_fraction"):
            split_by_material(_many(), fraction, seed=0)
    with pytest.raises(ValueError, match="1 formula"):
        split_by_material([crystal()], 0.5, seed=0)


CIF = """data_x
_cell_length_a 4
_cell_length_b 4
_cell_length_c 4
_cell_angle_alpha 90
_cell_angle_beta 90
_cell_angle_gamma 90
loop_
_atom_site_type_symbol
_atom_site_fract_x
_atom_site_fract_y
_atom_site_fract_z
Po 0 0 0
"""


def test_collect_joins_library_and_folders_and_refuses_a_taken_name(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "po.cif").write_text(CIF)
    (tmp_path / "two" / "broken.cif").write_text("data_x\n")
    crystals, refused = collect(True, [tmp_path / "one", tmp_path / "two"])
    names = [c.name for c in crystals]
    assert names == sorted(names)
    assert len(names) == len(library()) + 1
    assert "cif:po" in names
    assert sorted(error.name for error in refused) == ["cif:broken", "cif:po"]
    assert "already taken" in next(error.reason for error in refused if error.name == "cif:po")
    assert [c.name for c in collect(False, [tmp_path / "one"])[0]] == ["cif:po"]


def test_collect_of_nothing_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="library is off and no CIF folder"):
        collect(False, [])
    (tmp_path / "broken.cif").write_text("")
    with pytest.raises(ValueError, match=r"cif:broken: broken\.cif: the file is empty"):
        collect(False, [tmp_path])
