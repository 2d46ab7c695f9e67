"""Specimens: exact box, right density, no strain, orientation, occupancy, displacements, and making them again."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_gen.materials import BadCrystal, Crystal, library, read_cif_folder
from data_gen.orientation import Orientation, rotation_matrix
from data_gen.specimen import Specimen, cut_specimen, displaced, remake

STRUCTURES = Path(__file__).parents[2].parent / "shared" / "data" / "structures"
HIGH_INDEX = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 1, 1), (3, 2, 1), (5, -3, 7), (-2, 9, 4), (1, 0, 13)]
BOX = (63.1, 58.7, 41.3)
LOW_SYMMETRY = ["Al2SiO5-kyanite", "NaAlSi3O8-albite", "CaSiO3-wollastonite", "ZrO2-baddeleyite"]


def named(name: str) -> Crystal:
    return next(crystal for crystal in library() if crystal.name == name)


def cut(crystal: Crystal, box: tuple[float, float, float] = (25.3, 21.7, 18.9), **changes: Any) -> Specimen:
    options: dict[str, Any] = {"zone_axes": HIGH_INDEX, "tilt_mrad": 15.0, "displacement_sigma_angstrom": 0.0}
    return cut_specimen(crystal, box, **{**options, "rng_seed": (7, 1, 0), **changes})


def shared_site(occupancies: Sequence[tuple[int, float]]) -> Crystal:
    """Rock salt whose cations are mixed and partly missing, like Ge2Sb2Te5."""
    fcc = np.array([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]])
    sites = np.concatenate([fcc + 0.5, fcc])
    species = (tuple(occupancies),) * 4 + (((52, 1.0),),) * 4
    return Crystal("mixed", "mixed", "rocksalt", 6.02 * np.eye(3), sites, species, "test")


def lattice_in_box(crystal: Crystal, specimen: Specimen) -> np.ndarray:
    """Lattice vectors (rows) in the box's frame, from the record."""
    record: Any = specimen.provenance
    orientation = Orientation(
        tuple(record["zone_axis"]), tuple(record["tilt_mrad"]), record["in_plane_rotation_rad"], (0.0, 0.0, 0.0)
    )
    return crystal.cell_angstrom @ rotation_matrix(crystal.cell_angstrom, orientation).T


def mean_density_ratio(crystal: Crystal, count: int) -> float:
    specimens = [cut(crystal, BOX, tilt_mrad=30.0, rng_seed=(11, 2, item)) for item in range(count)]
    atoms = sum(len(specimen.numbers) for specimen in specimens)
    return atoms / (count * BOX[0] * BOX[1] * BOX[2]) / crystal.density_atoms_per_a3()


@pytest.mark.parametrize("name", ["Si-diamond", "C-graphite", "YBa2Cu3O7-YBCO", "Bi2Te3-tetradymite", *LOW_SYMMETRY])
def test_density_at_any_orientation(name: str) -> None:
    assert mean_density_ratio(named(name), 12) == pytest.approx(1.0, abs=0.01)


@pytest.mark.skipif(not STRUCTURES.is_dir(), reason="the shared test structures are not on this machine")
def test_density_of_every_shared_structure() -> None:
    crystals, refused = read_cif_folder(STRUCTURES)
    assert (len(crystals), refused) == (8, [])
    for crystal in crystals:
        assert mean_density_ratio(crystal, 12) == pytest.approx(1.0, abs=0.02), crystal.name
        for axis in ((1, 0, 0), (1, 1, 1), (4, -3, 7)):
            one = cut(crystal, (90.3, 87.1, 60.7), zone_axes=[axis], rng_seed=(5, 6, 7))
            density = len(one.numbers) / (90.3 * 87.1 * 60.7)
            assert density == pytest.approx(crystal.density_atoms_per_a3(), rel=0.02), (crystal.name, axis)


def test_density_of_a_mixed_crystal_counts_its_vacancies() -> None:
    assert mean_density_ratio(shared_site([(32, 0.4), (51, 0.4)]), 6) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("name", ["Si-diamond", *LOW_SYMMETRY])
def test_box_is_exact_and_every_atom_is_inside(name: str) -> None:
    box = (17.3, 23.9, 11.1)
    for item in range(10):
        for sigma in (0.0, 0.4):
            specimen = cut(named(name), box, displacement_sigma_angstrom=sigma, rng_seed=(1, 2, item))
            assert specimen.box_angstrom == box
            assert specimen.numbers.dtype == np.int64
            assert specimen.positions_angstrom.dtype == np.float64
            assert specimen.positions_angstrom.shape == (len(specimen.numbers), 3)
            assert (specimen.positions_angstrom >= 0.0).all()
            assert (specimen.positions_angstrom < np.array(box)).all()
            assert set(specimen.numbers.tolist()) <= set(named(name).composition())


@pytest.mark.parametrize("name", ["Mg-hcp", "MoS2-2H-MoS2", *LOW_SYMMETRY])
def test_the_box_holds_every_lattice_translation_and_no_strain(name: str) -> None:
    """An atom shifted by any lattice vector is an atom of the same kind, wherever that falls inside the box."""
    crystal = named(name)
    specimen = cut(crystal, (24.0, 26.0, 22.0), rng_seed=(3, 1, 4))
    positions, numbers = specimen.positions_angstrom, specimen.numbers
    lattice = lattice_in_box(crystal, specimen)
    np.testing.assert_allclose(
        lattice @ lattice.T, crystal.cell_angstrom @ crystal.cell_angstrom.T, rtol=1e-12, atol=1e-11
    )
    assert np.linalg.det(lattice) == pytest.approx(np.linalg.det(crystal.cell_angstrom), rel=1e-12)
    found = 0
    for translation in itertools.chain(lattice, [lattice.sum(axis=0), lattice[0] - 2 * lattice[1]]):
        moved = positions + translation
        inside = ((moved > 1e-6) & (moved < np.array(specimen.box_angstrom) - 1e-6)).all(axis=1)
        distance = np.linalg.norm(moved[inside][:, None, :] - positions[None, :, :], axis=2)
        partner = distance.argmin(axis=1)
        assert distance.min(axis=1).max(initial=0.0) < 1e-9
        np.testing.assert_array_equal(numbers[partner], numbers[inside])
        found += int(inside.sum())
    assert found > 100


@pytest.mark.parametrize("name", LOW_SYMMETRY)
def test_neighbour_distances_in_the_box_are_those_of_the_crystal(name: str) -> None:
    from data_gen.materials.geometry import close_pairs

    crystal = named(name)
    expected = np.unique(np.round(close_pairs(crystal.cell_angstrom, crystal.fractional, 3.0).distance_angstrom, 7))
    positions = cut(crystal, (16.0, 15.0, 14.0), rng_seed=(5, 5, 5)).positions_angstrom
    distance = np.linalg.norm(positions[:, None, :] - positions[None, :, :], axis=2)
    measured = distance[(distance > 0) & (distance < 2.9999)]
    nearest = np.abs(measured[:, None] - expected[None, :])
    assert nearest.min(axis=1).max() < 1e-6  # no distance that the crystal does not have
    assert (nearest.min(axis=0)[expected < 2.9999] < 1e-6).all()  # and none missing


@pytest.mark.parametrize("axis", [(1, 2, 1), (0, 0, 1), (2, -1, 3)])
def test_the_zone_axis_runs_along_the_beam(axis: tuple[int, int, int]) -> None:
    crystal = named("Al2SiO5-kyanite")
    length = float(np.linalg.norm(np.array(axis) @ crystal.cell_angstrom))
    specimen = cut(crystal, (14.0, 14.0, length + 6.0), zone_axes=[axis], tilt_mrad=0.0)
    assert specimen.zone_axis == axis
    positions = specimen.positions_angstrom
    lower = positions[positions[:, 2] < 5.9]
    distance = np.linalg.norm((lower + np.array([0.0, 0.0, length]))[:, None, :] - positions[None, :, :], axis=2)
    assert len(lower) > 20
    assert distance.min(axis=1).max() < 1e-9


def test_silicon_has_its_atomic_planes_along_001() -> None:
    specimen = cut(named("Si-diamond"), zone_axes=[(0, 0, 1)], tilt_mrad=0.0)
    phase = np.exp(2j * np.pi * specimen.positions_angstrom[:, 2] / (5.431 / 4))
    assert abs(phase.mean()) == pytest.approx(1.0, abs=1e-9)


def test_tilts_are_normal_with_the_stated_width_and_turn_the_beam_by_as_much() -> None:
    crystal = named("Si-diamond")
    specimens = [cut(crystal, (6.0, 6.0, 6.0), tilt_mrad=20.0, rng_seed=(1, 1, item)) for item in range(400)]
    tilts = np.array([specimen.provenance["tilt_mrad"] for specimen in specimens])
    assert np.abs(tilts.mean(axis=0)).max() < 4 * 20.0 / np.sqrt(400)
    np.testing.assert_allclose(tilts.std(axis=0), 20.0, rtol=0.15)
    for specimen in specimens[:20]:
        beam = np.array(specimen.zone_axis) @ lattice_in_box(crystal, specimen)
        angle_mrad = 1e3 * np.arctan2(np.hypot(beam[0], beam[1]), beam[2])
        tilt = np.linalg.norm(np.array(specimen.provenance["tilt_mrad"]))
        assert angle_mrad == pytest.approx(tilt, rel=1e-9)


def test_the_crystal_is_turned_about_the_beam_by_the_recorded_angle() -> None:
    crystal = Crystal("simple", "Po", "sc", 3.35 * np.eye(3), np.zeros((1, 3)), (((84, 1.0),),), "test")
    for item in range(5):
        specimen = cut(crystal, zone_axes=[(0, 0, 1)], tilt_mrad=0.0, rng_seed=(1, 1, item))
        step = specimen.positions_angstrom[:, None, :] - specimen.positions_angstrom[None, :, :]
        neighbour = step[np.abs(np.linalg.norm(step, axis=2) - 3.35) < 1e-6]
        flat = neighbour[np.abs(neighbour[:, 2]) < 1e-6]
        # rows of atoms run along four directions, 90 degrees apart
        turned = np.exp(4j * np.arctan2(flat[:, 1], flat[:, 0]))
        rotation: Any = specimen.provenance["in_plane_rotation_rad"]
        np.testing.assert_allclose(turned, np.exp(4j * rotation), atol=1e-6)


def test_zone_axes_rotations_and_origins_are_spread_evenly() -> None:
    specimens = [cut(named("Si-diamond"), (6.0, 6.0, 6.0), rng_seed=(2, 1, item)) for item in range(450)]
    counts = [sum(specimen.zone_axis == axis for specimen in specimens) for axis in HIGH_INDEX]
    assert min(counts) > 25  # 50 expected of each, standard deviation 6.7
    assert max(counts) < 75
    rotations = np.array([specimen.provenance["in_plane_rotation_rad"] for specimen in specimens])
    origins = np.array([specimen.provenance["origin_fractional"] for specimen in specimens])
    for phase in (rotations, 2 * np.pi * origins):
        assert np.abs(np.exp(1j * phase).mean(axis=0)).max() < 4 / np.sqrt(450)


def test_same_seed_same_bits_and_another_seed_another_specimen() -> None:
    crystal = shared_site([(32, 0.4), (51, 0.4)])
    first = cut(crystal, displacement_sigma_angstrom=0.08)
    again = cut(crystal, displacement_sigma_angstrom=0.08)
    np.testing.assert_array_equal(first.positions_angstrom, again.positions_angstrom)
    np.testing.assert_array_equal(first.numbers, again.numbers)
    assert first.provenance == again.provenance
    for seed in ((8, 1, 0), (7, 2, 0), (7, 1, 1)):
        other = cut(crystal, displacement_sigma_angstrom=0.08, rng_seed=seed)
        assert other.provenance["origin_fractional"] != first.provenance["origin_fractional"]
        assert other.positions_angstrom.shape != first.positions_angstrom.shape or not np.array_equal(
            other.positions_angstrom, first.positions_angstrom
        )


def test_the_draws_do_not_disturb_one_another() -> None:
    """Displacements and occupancies have streams of their own: the orientation and the atoms at rest stay."""
    crystal = shared_site([(32, 0.4), (51, 0.4)])
    at_rest = cut(crystal)
    moved = cut(crystal, displacement_sigma_angstrom=0.05)
    np.testing.assert_array_equal(at_rest.numbers, moved.numbers)
    box = np.array(at_rest.box_angstrom)
    step = moved.positions_angstrom - at_rest.positions_angstrom
    step[:, :2] -= box[:2] * np.round(step[:, :2] / box[:2])
    assert np.abs(step).max() < 6 * 0.05
    full = cut(shared_site([(32, 1.0)]))
    assert full.provenance["origin_fractional"] == at_rest.provenance["origin_fractional"]


def test_occupancies_are_drawn_with_their_probabilities() -> None:
    specimen = cut(shared_site([(32, 0.4), (51, 0.4)]), (80.0, 80.0, 60.0), rng_seed=(9, 9, 9))
    counts = {z: int((specimen.numbers == z).sum()) for z in (32, 51, 52)}
    sites = counts[52]  # as many cation as anion sites, up to the surface
    assert sites > 6000
    for z, probability in ((32, 0.4), (51, 0.4)):
        spread = np.sqrt(sites * probability * (1 - probability))
        assert abs(counts[z] - probability * sites) < 5 * spread + 0.01 * sites
    assert counts[32] + counts[51] < 0.85 * sites  # vacancies are there


def test_neighbouring_cells_draw_independently() -> None:
    crystal = Crystal("half", "Au", "sc", 3.0 * np.eye(3), np.zeros((1, 3)), (((79, 0.5),),), "test")
    specimen = cut(crystal, (90.0, 90.0, 60.0), zone_axes=[(0, 0, 1)], tilt_mrad=0.0)
    positions = specimen.positions_angstrom
    # the distance from an atom to the next filled site along z is geometric: half of the next sites are filled
    order = np.lexsort((positions[:, 2], np.round(positions[:, 1], 3), np.round(positions[:, 0], 3)))
    step = np.diff(positions[order], axis=0)
    same_column = np.linalg.norm(step[:, :2], axis=1) < 1e-6
    gaps = np.round(step[same_column, 2] / 3.0)
    assert np.mean(gaps == 1) == pytest.approx(0.52, abs=0.03)  # 0.5 and the finite thickness of 20 sites
    assert np.mean(gaps == 2) == pytest.approx(0.25, abs=0.03)


def test_thirds_written_with_three_digits_leave_no_vacancy() -> None:
    specimen = cut(shared_site([(32, 0.333), (51, 0.333), (50, 0.3333)]), BOX)
    cations = int((specimen.numbers != 52).sum())
    assert cations == pytest.approx(int((specimen.numbers == 52).sum()), rel=0.02)


def test_split_positions_are_never_occupied_together() -> None:
    sites = np.array([[0.02, 0.5, 0.5], [0.95, 0.5, 0.5], [0.5, 0.5, 0.5]])
    species = (((8, 0.5),), ((8, 0.5),), ((12, 1.0),))
    crystal = Crystal("split", "MgO", "test", 4.0 * np.eye(3), sites, species, "test")
    specimen = cut(crystal, (50.0, 50.0, 40.0))
    oxygen = specimen.positions_angstrom[specimen.numbers == 8]
    magnesium = int((specimen.numbers == 12).sum())
    assert len(oxygen) == pytest.approx(magnesium, rel=0.03)  # exactly one of the two in every cell
    ordered = oxygen[np.argsort(oxygen[:, 0])]
    for step in range(1, 40):
        assert np.linalg.norm(ordered[step:] - ordered[:-step], axis=1).min() > 1.0


def test_displacements_have_the_stated_width_along_each_axis() -> None:
    at_rest = cut(named("Au-fcc"), (60.0, 60.0, 50.0))
    sigma = 0.085
    moved = displaced(at_rest, sigma, (1, 2, 3))
    step = moved.positions_angstrom - at_rest.positions_angstrom
    box = np.array(at_rest.box_angstrom)
    step[:, :2] -= box[:2] * np.round(step[:, :2] / box[:2])
    inner = (at_rest.positions_angstrom[:, 2] > 0.5) & (at_rest.positions_angstrom[:, 2] < 49.5)
    count = int(inner.sum())
    assert np.abs(step[inner].mean(axis=0)).max() < 4.5 * sigma / np.sqrt(count)
    np.testing.assert_allclose(step[inner].std(axis=0), sigma, rtol=4.5 / np.sqrt(2 * count))
    correlation = np.corrcoef(step[inner].T) - np.eye(3)
    assert np.abs(correlation).max() < 4.5 / np.sqrt(count)
    np.testing.assert_array_equal(moved.numbers, at_rest.numbers)


def test_phonon_configurations_differ_and_come_again() -> None:
    at_rest = cut(named("Au-fcc"))
    configurations = [displaced(at_rest, 0.08, (1, 2, 0, k)) for k in range(3)]
    for one, other in itertools.combinations(configurations, 2):
        assert not np.array_equal(one.positions_angstrom, other.positions_angstrom)
    again = displaced(at_rest, 0.08, (1, 2, 0, 1))
    np.testing.assert_array_equal(again.positions_angstrom, configurations[1].positions_angstrom)
    assert at_rest.provenance["displacement"] is None
    with pytest.raises(ValueError, match="displaced already"):
        displaced(again, 0.08, (1,))


def test_atoms_that_leave_sideways_come_in_again_and_along_the_beam_stay_at_the_face() -> None:
    at_rest = cut(named("Au-fcc"), (12.0, 14.0, 10.0))
    moved = displaced(at_rest, 3.0, (4,)).positions_angstrom
    raw = at_rest.positions_angstrom + np.random.default_rng(np.random.SeedSequence([4])).normal(0.0, 3.0, moved.shape)
    left = raw[:, 0] < 0
    assert left.any()
    np.testing.assert_allclose(moved[left, 0], raw[left, 0] + 12.0, atol=1e-12)
    assert (raw[:, 2] > 10.0).any()
    assert (moved[raw[:, 2] > 10.0, 2] == np.nextafter(10.0, 0.0)).all()
    assert (moved[raw[:, 2] < 0.0, 2] == 0.0).all()


@pytest.mark.parametrize("sigma", [0.0, 0.07])
def test_a_record_makes_the_same_specimen_again(sigma: float) -> None:
    for crystal in (shared_site([(32, 0.4), (51, 0.4)]), named("NaAlSi3O8-albite")):
        made = cut(crystal, displacement_sigma_angstrom=sigma, rng_seed=(2**40, 3, 12345))
        record = json.loads(json.dumps(made.provenance))
        again = remake(crystal, record)
        np.testing.assert_array_equal(again.positions_angstrom, made.positions_angstrom)
        np.testing.assert_array_equal(again.numbers, made.numbers)
        assert (again.box_angstrom, again.zone_axis, again.provenance) == (made.box_angstrom, made.zone_axis, record)
    phonon = displaced(cut(named("Au-fcc")), 0.08, (1, 2, 0, 5))
    again = remake(named("Au-fcc"), json.loads(json.dumps(phonon.provenance)))
    np.testing.assert_array_equal(again.positions_angstrom, phonon.positions_angstrom)


def test_a_record_refuses_another_crystal() -> None:
    with pytest.raises(BadCrystal, match="Ag-fcc: its structure differs from that of the record"):
        remake(named("Ag-fcc"), cut(named("Au-fcc")).provenance)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"box": (0.0, 5.0, 5.0)}, "box_angstrom"),
        ({"box": (5.0, float("nan"), 5.0)}, "box_angstrom"),
        ({"zone_axes": []}, "zone_axes"),
        ({"zone_axes": [(0, 0, 1), (0, 0, 0)]}, "zone_axes"),
        ({"tilt_mrad": -1.0}, "tilt_mrad"),
        ({"tilt_mrad": float("inf")}, "tilt_mrad"),
        ({"displacement_sigma_angstrom": -0.1}, "sigma"),
        ({"displacement_sigma_angstrom": float("nan")}, "sigma"),
    ],
)
def test_impossible_requests_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        cut(named("Au-fcc"), **changes)


def test_a_box_in_the_vacuum_of_a_slab_is_refused_by_name() -> None:
    slab = Crystal("slab", "C", "test", np.diag([2.5, 2.5, 500.0]), np.zeros((1, 3)), (((6, 1.0),),), "test")
    with pytest.raises(BadCrystal, match="slab: no atom lies in the box of 10 x 10 x 5 Å"):
        cut(slab, (10.0, 10.0, 5.0), zone_axes=[(0, 0, 1)], tilt_mrad=0.0)
    with pytest.raises(BadCrystal, match="Au-fcc: the box would hold"):
        cut(named("Au-fcc"), (1e4, 1e4, 1e4))
