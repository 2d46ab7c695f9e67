"""The crystal library: is every built-in crystal the material it says it is?"""

from __future__ import annotations

import itertools
import re
from collections import Counter

import numpy as np
import pytest

from data_gen.materials import Crystal, check_crystal, library
from data_gen.materials.elements import SYMBOLS, atomic_number, parse_formula, reduced_formula
from data_gen.materials.geometry import cell_from_parameters, cell_heights, close_pairs
from data_gen.materials.prototypes import Prototype, Row, build
from data_gen.materials.symmetry import orbit, parse_operation, space_group_operations

# Mass densities in g/cm³ (CRC Handbook; Deer, Howie and Zussman for minerals), independent of the cells.
DENSITIES = """
    Al-fcc 2.70; Cu-fcc 8.96; Ag-fcc 10.50; Au-fcc 19.3; Ni-fcc 8.90; Pt-fcc 21.45; Pb-fcc 11.34; Fe-bcc 7.87; W-bcc
    19.3; Mo-bcc 10.2; Nb-bcc 8.57; Ta-bcc 16.65; Na-bcc 0.968; V-bcc 6.11; Mg-hcp 1.74; Ti-hcp 4.51; Zn-hcp 7.13;
    Co-hcp 8.86; Be-hcp 1.85; Zr-hcp 6.51; Gd-hcp 7.90; C-diamond 3.51; Si-diamond 2.33; Ge-diamond 5.32;
    Sn-beta-tin 7.29; C-graphite 2.26; Bi-arsenic 9.79; Sb-arsenic 6.68; Te-selenium 6.24; Ga-gallium 5.91;
    U-alpha-uranium 19.1; NaCl-rocksalt 2.17; KCl-rocksalt 1.99; LiF-rocksalt 2.64; MgO-rocksalt 3.58; CaO-rocksalt
    3.34; PbS-rocksalt 7.60; TiN-rocksalt 5.40; AgCl-rocksalt 5.56; CsCl-caesium-chloride 3.99; CaF2-fluorite 3.18;
    BaF2-fluorite 4.89; CeO2-fluorite 7.22; UO2-fluorite 10.97; Mg2Si-antifluorite 1.99; TiO2-rutile 4.25;
    TiO2-anatase 3.89; TiO2-brookite 4.12; SnO2-rutile 6.95; SiO2-rutile 4.29; GaAs-zincblende 5.32; InP-zincblende
    4.81; CdTe-zincblende 5.85; SiC-6H 3.21; ZnO-wurtzite 5.61; GaN-wurtzite 6.10; CdS-wurtzite 4.82; AlN-wurtzite
    3.26; CuFeS2-chalcopyrite 4.19; Cu2O-cuprite 6.10; SrTiO3-perovskite 5.12; BaTiO3-tetragonal-perovskite 6.02;
    CaTiO3-GdFeO3 4.04; LiNbO3-LiNbO3 4.64; LaAlO3-rhombohedral-LaAlO3 6.52; BiFeO3-BiFeO3 8.34; YBa2Cu3O7-YBCO
    6.38; ReO3-rhenium-trioxide 7.4; Al2O3-corundum 3.98; Fe2O3-corundum 5.26; Cr2O3-corundum 5.22; FeTiO3-ilmenite
    4.79; MgAl2O4-spinel 3.58; Fe3O4-spinel 5.20; Y3Al5O12-garnet 4.56; Y2O3-bixbyite 5.03; CuO-tenorite 6.51;
    ZrO2-baddeleyite 5.82; Ga2O3-beta-gallia 5.95; V2O5-vanadium-pentoxide 3.36; MoO3-molybdite 4.70; MoS2-2H-MoS2
    5.06; WSe2-2H-MoS2 9.32; BN-hexagonal-BN 2.28; Bi2Te3-tetradymite 7.86; CdI2-1T-CdI2 5.64; SiO2-quartz 2.65;
    SiO2-cristobalite 2.33; CaCO3-calcite 2.71; CaCO3-aragonite 2.93; FeS2-pyrite 5.01; Mg2SiO4-olivine 3.22;
    CaMgSi2O6-pyroxene 3.28; NaAlSi2O6-pyroxene 3.34; Al2SiO5-kyanite 3.67; CaSiO3-wollastonite 2.91;
    NaAlSi3O8-albite 2.62; BaSO4-barite 4.48; CaWO4-scheelite 6.12; HgS-cinnabar 8.18; ZrSiO4-zircon 4.67;
    LiFePO4-olivine 3.60; Sb2S3-stibnite 4.63; CaMgC2O6-dolomite 2.87; LaB6-hexaboride 4.72; MgB2-diboride 2.63;
    WC-tungsten-carbide 15.63; CoSb3-skutterudite 7.63; Nb3Sn-A15 8.92; MgCu2-Laves-C15 5.77; Fe3C-cementite 7.69;
    MoSi2-MoSi2 6.26; NiAl-B2 5.91
"""
DENSITY_OF = {name: float(value) for name, value in (entry.split() for entry in DENSITIES.split(";"))}


def _single(crystal: Crystal) -> np.ndarray:
    return np.array([site[0][0] for site in crystal.species])


def _named(name: str) -> Crystal:
    return next(crystal for crystal in library() if crystal.name == name)


def _neighbours(name: str, centre: str, partner: str, within_angstrom: float) -> list[np.ndarray]:
    """Distances to the partners of each centre atom."""
    crystal = _named(name)
    numbers = _single(crystal)
    pairs = close_pairs(crystal.cell_angstrom, crystal.fractional, within_angstrom)
    distances: list[list[float]] = [[] for _ in numbers]
    for first, second, distance in zip(pairs.first, pairs.second, pairs.distance_angstrom, strict=True):
        for here, there in ((first, second), (second, first)):
            if numbers[here] == atomic_number(centre) and numbers[there] == atomic_number(partner):
                distances[here].append(float(distance))
    return [np.array(found) for here, found in enumerate(distances) if numbers[here] == atomic_number(centre)]


def test_the_library_is_large_sorted_and_built_once() -> None:
    crystals = library()
    names = [crystal.name for crystal in crystals]
    assert len(crystals) >= 150
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    assert library() is crystals
    assert all(crystal.source for crystal in crystals)
    assert len({crystal.prototype for crystal in crystals}) >= 60


def test_every_crystal_passes_the_checks() -> None:
    for crystal in library():
        check_crystal(crystal)


def test_the_cell_holds_what_the_formula_says() -> None:
    for crystal in library():
        written = parse_formula(crystal.name.split("-")[0])
        found = Counter({SYMBOLS[z]: amount for z, amount in crystal.composition().items()})
        units = {found[symbol] / amount for symbol, amount in written.items()}
        assert len(units) == 1, crystal.name
        assert units.pop().is_integer(), crystal.name
        assert set(found) == set(written), crystal.name


@pytest.mark.parametrize("name", sorted(DENSITY_OF))
def test_the_mass_density_is_the_handbook_value(name: str) -> None:
    assert _named(name).mass_density_g_per_cm3() == pytest.approx(DENSITY_OF[name], rel=0.02)


def test_all_densities_are_possible() -> None:
    lightest = min(library(), key=lambda crystal: crystal.mass_density_g_per_cm3())
    heaviest = max(library(), key=lambda crystal: crystal.mass_density_g_per_cm3())
    assert lightest.name == "Li-bcc"
    assert heaviest.name == "Os-hcp"
    assert lightest.mass_density_g_per_cm3() == pytest.approx(0.534, rel=0.02)
    assert heaviest.mass_density_g_per_cm3() == pytest.approx(22.59, rel=0.02)


def test_every_atom_has_neighbours_at_bonding_distance() -> None:
    """Nearest distances over the sum of covalent radii (Cordero et al., Dalton Trans. 2008, 2832).

    Metals and ionic crystals reach 1.3, d-metals with strong bonds 0.7; a wrong internal parameter falls outside.
    """
    from ase.data import covalent_radii

    def nearest_ratios(crystal: Crystal, cutoff_angstrom: float) -> np.ndarray:
        radii = covalent_radii[_single(crystal)]
        pairs = close_pairs(crystal.cell_angstrom, crystal.fractional, cutoff_angstrom)
        ratio = pairs.distance_angstrom / (radii[pairs.first] + radii[pairs.second])
        nearest = np.full(len(radii), np.inf)
        np.minimum.at(nearest, pairs.first, ratio)
        np.minimum.at(nearest, pairs.second, ratio)
        return nearest

    for crystal in library():
        ratios = nearest_ratios(crystal, 3.45)  # 0.7 times the largest sum of radii
        if np.isinf(ratios).any():
            ratios = nearest_ratios(crystal, 4.8)
        assert ratios.min() > 0.70, crystal.name
        assert ratios.max() < 1.31, crystal.name


@pytest.mark.parametrize(
    ("name", "centre", "partner", "within", "count", "shortest", "longest"),
    [
        ("Si-diamond", "Si", "Si", 2.6, 4, 2.352, 2.352),
        ("SrTiO3-perovskite", "Ti", "O", 2.2, 6, 1.9525, 1.9525),
        ("SiO2-quartz", "Si", "O", 2.0, 4, 1.60, 1.62),
        ("GeO2-quartz", "Ge", "O", 2.0, 4, 1.73, 1.75),
        ("AlPO4-berlinite", "P", "O", 2.0, 4, 1.51, 1.53),
        ("SiO2-cristobalite", "Si", "O", 2.0, 4, 1.59, 1.62),
        ("CaCO3-calcite", "C", "O", 1.5, 3, 1.28, 1.29),
        ("CaCO3-aragonite", "C", "O", 1.5, 3, 1.27, 1.29),
        ("MoS2-2H-MoS2", "Mo", "S", 2.7, 6, 2.40, 2.42),
        ("MgAl2O4-spinel", "Al", "O", 2.3, 6, 1.91, 1.94),
        ("Al2O3-corundum", "Al", "O", 2.3, 6, 1.84, 1.98),
        ("BaSO4-barite", "S", "O", 1.8, 4, 1.45, 1.50),
        ("Al2SiO5-kyanite", "Al", "O", 2.2, 6, 1.80, 2.01),
        ("Al2SiO5-kyanite", "Si", "O", 2.2, 4, 1.61, 1.66),
        ("CaSiO3-wollastonite", "Si", "O", 2.0, 4, 1.56, 1.68),
        ("NaAlSi3O8-albite", "Al", "O", 2.2, 4, 1.72, 1.76),
        ("NaAlSi3O8-albite", "Si", "O", 2.2, 4, 1.58, 1.65),
        ("CaMgSi2O6-pyroxene", "Mg", "O", 2.4, 6, 2.03, 2.13),
        ("ZrO2-baddeleyite", "Zr", "O", 2.5, 7, 2.04, 2.30),
        ("TiO2-brookite", "Ti", "O", 2.3, 6, 1.85, 2.07),
        ("LiFePO4-olivine", "P", "O", 1.8, 4, 1.51, 1.57),
        ("FeS2-pyrite", "S", "S", 2.4, 1, 2.14, 2.20),
        ("Bi2Te3-tetradymite", "Bi", "Te", 3.5, 6, 3.05, 3.27),
    ],
)
def test_bond_lengths_and_coordination(
    name: str, centre: str, partner: str, within: float, count: int, shortest: float, longest: float
) -> None:
    for distances in _neighbours(name, centre, partner, within):
        assert len(distances) == count
        assert distances.min() > shortest - 0.01
        assert distances.max() < longest + 0.01


def test_lattice_constants_of_the_elements_agree_with_ase() -> None:
    """ASE's table (Ashcroft and Mermin) is an independent compilation; some of its values are of low temperature."""
    from ase.data import reference_states

    compared = 0
    for crystal in library():
        if crystal.prototype not in ("fcc", "bcc", "hcp", "diamond"):
            continue
        reference = reference_states[_single(crystal)[0]]
        if reference is None or reference["symmetry"] != crystal.prototype:
            continue
        assert np.linalg.norm(crystal.cell_angstrom[0]) == pytest.approx(reference["a"], rel=0.022), crystal.name
        if crystal.prototype == "hcp":
            ratio = crystal.cell_angstrom[2, 2] / crystal.cell_angstrom[0, 0]
            assert ratio == pytest.approx(reference["c/a"], rel=0.01), crystal.name
        compared += 1
    assert compared >= 40


def test_no_row_is_listed_twice() -> None:
    assert len({crystal.structure_sha256() for crystal in library()}) == len(library())
    assert len({(crystal.formula, crystal.prototype) for crystal in library()}) == len(library())


def test_polymorphs_share_their_formula() -> None:
    count = Counter(crystal.formula for crystal in library())
    assert count["TiO2"] == 3
    assert count["SiO2"] == 3
    assert count["SiC"] == 3
    assert count["C"] == 2


def test_low_symmetry_is_represented() -> None:
    triclinic = [c for c in library() if len(set(np.round(_angles(c), 2))) == 3]
    monoclinic = [c for c in library() if sorted(np.round(_angles(c), 2))[:2] == [90.0, 90.0] and _angles(c)[1] > 91]
    assert len(triclinic) >= 3
    assert len(monoclinic) >= 5


def _angles(crystal: Crystal) -> np.ndarray:
    a, b, c = crystal.cell_angstrom / np.linalg.norm(crystal.cell_angstrom, axis=1)[:, None]
    return np.degrees(np.arccos([b @ c, a @ c, a @ b]))


def test_a_row_whose_contents_disagree_with_its_formula_is_caught() -> None:
    rocksalt = Prototype(225, "cubic", "A 0 0 0; B 1/2 1/2 1/2")
    assert build(Row("rocksalt", "NaCl", (5.64,), "test"), rocksalt).formula == "NaCl"
    with pytest.raises(AssertionError, match="NaCl2"):
        build(Row("rocksalt", "NaCl2", (5.64,), "test"), rocksalt)
    with pytest.raises(ValueError, match="do not fit the cubic system"):
        build(Row("rocksalt", "NaCl", (5.64, 5.64), "test"), rocksalt)


@pytest.mark.parametrize(
    ("composition", "formula"),
    [
        ({38: 2, 22: 2, 8: 6}, "SrTiO3"),
        ({14: 8}, "Si"),
        ({6: 4, 14: 4}, "SiC"),
        ({32: 1.6, 51: 1.6, 52: 4.0}, "Ge2Sb2Te5"),
        ({26: 0.9474, 8: 1.0}, "Fe18O19"),
    ],
)
def test_reduced_formulas(composition: dict[int, float], formula: str) -> None:
    assert reduced_formula(composition) == formula


@pytest.mark.parametrize("formula", ["", "Xx2", "NaNa", "Na(Cl)", "2Na"])
def test_formulas_that_are_none(formula: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(formula)) + "|element"):
        parse_formula(formula)


@pytest.mark.parametrize(
    ("group", "setting", "order"),
    [(1, 1, 1), (2, 1, 2), (14, 1, 4), (166, 1, 36), (166, 2, 12), (225, 1, 192), (230, 1, 96)],
)
def test_space_groups_have_their_order(group: int, setting: int, order: int) -> None:
    assert len(space_group_operations(group, setting)) == order


def test_an_unknown_space_group_is_refused() -> None:
    with pytest.raises(ValueError, match="no space group 231"):
        space_group_operations(231)


def test_operations_are_read_in_any_order_of_terms() -> None:
    rotation, translation = parse_operation(" 1/2-x, y+x ,-z+0.25")
    np.testing.assert_array_equal(rotation, [[-1, 0, 0], [1, 1, 0], [0, 0, -1]])
    np.testing.assert_array_equal(translation, [0.5, 0, 0.25])


@pytest.mark.parametrize("text", ["x,y", "x,y,q", "x,y,x", "x,y,z+1/0", "x,,z", "x;y;z"])
def test_wrong_operations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        parse_operation(text)


def test_orbits_have_the_multiplicity_of_the_site() -> None:
    operations = space_group_operations(225)
    cell = np.eye(3) * 5.0
    for point, multiplicity in [((0, 0, 0), 4), ((0.25, 0.25, 0.25), 8), ((0.2, 0, 0), 24), ((0.11, 0.23, 0.34), 192)]:
        assert len(orbit(operations, np.array(point, dtype=float), cell)) == multiplicity
    # 0.3333 and 0.6667 for thirds: the copies are 1e-3 Å apart and are one site
    assert len(orbit(space_group_operations(194), np.array([0.3333, 0.6667, 0.25]), np.diag([3.0, 3.0, 5.0]))) == 2


def test_cell_vectors_reproduce_the_parameters() -> None:
    lengths, angles = (7.424, 7.629, 9.91), (68.61, 69.71, 65.08)
    cell = cell_from_parameters(lengths, angles)
    np.testing.assert_allclose(np.linalg.norm(cell, axis=1), lengths, rtol=1e-12)
    a, b, c = cell / np.linalg.norm(cell, axis=1)[:, None]
    np.testing.assert_allclose(np.degrees(np.arccos([b @ c, a @ c, a @ b])), angles, rtol=1e-12)
    assert np.linalg.det(cell) == pytest.approx(461.4025, rel=1e-5)  # turquoise, as published
    with pytest.raises(ValueError, match="span no volume"):
        cell_from_parameters((1, 1, 1), (10, 20, 150))
    with pytest.raises(ValueError, match="gamma"):
        cell_from_parameters((1, 1, 1), (90, 90, 180))


@pytest.mark.parametrize("seed", range(6))
def test_close_pairs_equal_a_brute_force_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cell = np.diag(rng.uniform(1.0, 4.0, 3)) + rng.uniform(-1.0, 1.0, (3, 3)) * (seed % 3)
    if cell_heights(cell).min() < 0.5:
        cell += 3.0 * np.eye(3)
    fractional = rng.uniform(-1.5, 1.5, (7, 3))
    cutoff = 1.9
    shifts = np.array(list(itertools.product(range(-9, 10), repeat=3)))
    expected = set()
    for i, j in itertools.combinations_with_replacement(range(7), 2):
        distances = np.linalg.norm((fractional[j] + shifts - fractional[i]) @ cell, axis=1)
        near = {tuple(map(int, shift)) for shift in shifts[distances < cutoff]}
        expected |= {(i, j, *shift) for shift in near if i < j or shift > (0, 0, 0)}
    pairs = close_pairs(cell, fractional, cutoff)
    found = {(int(i), int(j), *map(int, s)) for i, j, s in zip(pairs.first, pairs.second, pairs.shift, strict=True)}
    assert found == expected
    assert len(pairs.first) == len(expected)
    step = fractional[pairs.second] + pairs.shift - fractional[pairs.first]
    np.testing.assert_allclose(pairs.distance_angstrom, np.linalg.norm(step @ cell, axis=1), atol=1e-9)
