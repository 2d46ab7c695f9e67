"""Samples of the CBED database's kind: their physics, and what they depend on."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from data_gen.cbed import CbedOptions, choose_crystals, make_cbed, semi_angles_rad
from data_gen.engines import engine_by_name
from data_gen.imaging import setup_for
from data_gen.materials import library
from data_gen.specimen import displaced, remake
from field_cases import small_config
from stemdl.config import Config
from stemdl.config.substitute import with_values
from stemdl.physics.constants import wavelength_angstrom
from stemdl.shards.cbed_layout import CbedSample

BOX, Q = 20.0, 64
NAMES = ("Al-fcc", "Fe-bcc", "MgO-rocksalt", "Mg-hcp", "Si-diamond")


def config_of(**changes: Any) -> Config:
    """Patterns of 64 x 64 pixels that end at 1.6 1/Å, as far as the grid carries."""
    sections = {
        "crystals": {"include": NAMES, "held_out_fraction": 0.4},
        "specimen": {"box_angstrom": BOX, "thickness_angstrom": (8.0, 8.0), "tilt_mrad": 0.0},
        "scan": {"positions": (2, 2), "step_angstrom": 5.0},
        "detector": {"pixels": (Q, Q), "dk_per_angstrom": 1 / BOX},
        "simulation": {"pixel_angstrom": BOX / 96, "slice_angstrom": 2.0, "samples": 1},
        "microscope": {"energy_kev": 77.0, "semiangle_mrad": 66.0},
    }
    return small_config(**{**sections, **changes})


def samples_of(config: Config, name: str = "Al-fcc", **options: Any) -> list[CbedSample]:
    chosen = next(one for one in choose_crystals(config)[0] if one.crystal.name == name)
    given = CbedOptions(**{"energies_kev": (100.0,), **options})
    return list(make_cbed(config, chosen, given, engine_by_name("torch")))


def disc_radius_pixels(pattern: np.ndarray) -> float:
    """Of the area in which the pattern is brighter than half of what its middle is."""
    middle = np.median(pattern[Q // 2 - 2 : Q // 2 + 3, Q // 2 - 2 : Q // 2 + 3])
    return math.sqrt(float((pattern > middle / 2).sum()) / math.pi)


def test_the_disc_is_as_wide_as_the_semi_angle() -> None:
    for energy in (100.0, 200.0):
        (sample,) = samples_of(config_of(), overlap=2.0, energies_kev=(energy,))
        assert sample.semi_angles_rad is not None
        for pattern, angle in zip(sample.cbed_stack, sample.semi_angles_rad, strict=True):
            radius = angle / wavelength_angstrom(energy) * BOX  # in pixels
            assert disc_radius_pixels(pattern) == pytest.approx(radius, rel=0.04)


def test_semi_angles_are_half_the_bragg_angle_at_100_kev() -> None:
    hundred, (two_hundred,) = samples_of(config_of())[0], samples_of(config_of(), energies_kev=(200.0,))
    assert hundred.d_hkls_angstrom is not None
    assert hundred.semi_angles_rad is not None
    wanted = 0.5 * wavelength_angstrom(100.0) / (2 * hundred.d_hkls_angstrom)
    np.testing.assert_allclose(hundred.semi_angles_rad, wanted, rtol=1e-12)
    assert two_hundred.semi_angles_rad is not None
    np.testing.assert_array_equal(two_hundred.semi_angles_rad, hundred.semi_angles_rad)
    assert semi_angles_rad([], 0.5).shape == (0,)


def test_intensities_are_fractions_of_the_beam() -> None:
    (sample,) = samples_of(config_of())
    sums = sample.cbed_stack.sum(axis=(1, 2), dtype=np.float64)
    assert (sums <= 1 + 1e-6).all()
    assert (sums > 0.8).all()
    assert sample.cbed_stack.min() >= 0
    assert sample.cbed_stack.dtype == np.float32


def test_a_pattern_is_the_mean_of_those_at_each_position_and_the_record_is_enough() -> None:
    """Made again from the provenance alone, one probe after the other."""
    config = config_of(simulation__frozen_phonons=2)
    (sample,) = samples_of(config)
    record = json.loads(sample.extra["stemdl_provenance"])
    crystal = next(one for one in library() if one.name == "Al-fcc")
    engine = engine_by_name("torch")
    assert sample.semi_angles_rad is not None
    for orientation in range(3):
        at_rest = remake(crystal, record["specimens"][orientation])
        angle = 1e3 * float(sample.semi_angles_rad[orientation])
        setup = setup_for(with_values(config, {"energy_kev": 100.0, "semiangle_mrad": angle}), config.simulation)
        single = []
        for seed in record["phonon_seeds"][orientation]:
            atoms = displaced(at_rest, record["displacement_sigma_angstrom"], seed)
            single.append(engine.patterns(*engine.slices(atoms, setup), setup).reshape(-1, Q, Q))
        mean = torch.cat(single).mean(dim=0, dtype=torch.float64).numpy()
        np.testing.assert_allclose(sample.cbed_stack[orientation], mean, rtol=1e-6, atol=1e-12)
        assert not np.allclose(single[0][0], single[0][1], rtol=0.01), "the positions see different things"


def test_they_follow_from_the_seed_and_nothing_else() -> None:
    config = config_of()
    both = samples_of(config, energies_kev=(100.0, 150.0))
    alone = samples_of(config, energies_kev=(150.0,))
    np.testing.assert_array_equal(both[1].cbed_stack, alone[0].cbed_stack)
    assert [sample.energy_kev for sample in both] == [100.0, 150.0]
    np.testing.assert_array_equal(samples_of(config)[0].cbed_stack, both[0].cbed_stack)
    other = samples_of(config_of(run={"folder": "/runs/small", "seed": 4}))[0]
    assert not np.array_equal(other.cbed_stack, both[0].cbed_stack)
    changed = config_of(
        microscope={"energy_kev": 300.0, "semiangle_mrad": 5.0}, vary={"energy_kev": {"choice": (80.0,)}}
    )
    np.testing.assert_array_equal(samples_of(changed)[0].cbed_stack, both[0].cbed_stack)


def test_what_the_record_says_of_the_crystal() -> None:
    (sample,) = samples_of(config_of(), name="Mg-hcp")
    crystal = next(one for one in library() if one.name == "Mg-hcp")
    assert (sample.space_group, sample.material, sample.formula) == ("194", "Mg-hcp", "Mg")
    a, c = 3.2094, 5.2107
    assert sample.abc_angstrom is not None
    assert sample.angles_degree is not None
    np.testing.assert_allclose(sample.abc_angstrom, (a, a, c), rtol=1e-9)
    np.testing.assert_allclose(sample.angles_degree, (90, 90, 120), rtol=1e-9)
    assert sample.z_dirs is not None
    assert sample.y_dirs is not None
    along = sample.z_dirs @ crystal.cell_angstrom
    rows = sample.y_dirs @ crystal.cell_angstrom
    np.testing.assert_allclose((along * rows).sum(axis=1), 0, atol=1e-9)
    np.testing.assert_allclose(np.abs(sample.y_dirs).max(axis=1), 1.0)


def test_y_dirs_are_the_direction_of_the_rows() -> None:
    """The reflection nearest to a row direction lies on the pattern's vertical line through the middle."""
    (sample,) = samples_of(config_of(specimen={
        "box_angstrom": BOX, "thickness_angstrom": (8.0, 8.0), "tilt_mrad": 0.0, "displacement_sigma_angstrom": 0.0,
    }), name="Al-fcc")  # fmt: skip
    crystal = next(one for one in library() if one.name == "Al-fcc")
    assert sample.z_dirs is not None
    assert sample.y_dirs is not None
    beam = sample.z_dirs[1] @ crystal.cell_angstrom
    down = sample.y_dirs[1] @ crystal.cell_angstrom
    beam, down = beam / np.linalg.norm(beam), down / np.linalg.norm(down)
    across = np.cross(down, beam)  # the box's x axis, x × y = z
    reciprocal = np.linalg.inv(crystal.cell_angstrom).T
    pattern = sample.cbed_stack[1]
    wanted = []
    for hkl in ((0, 2, 0), (0, 0, 2), (0, 2, 2), (0, 2, -2)):  # around [200]
        g = np.array(hkl) @ reciprocal
        wanted.append((round(float(g @ down) * BOX) + Q // 2, round(float(g @ across) * BOX) + Q // 2))
    typical = float(np.median(pattern))
    for row, column in wanted:
        assert pattern[row - 1 : row + 2, column - 1 : column + 2].max() > 20 * typical


def test_thickness_may_be_a_range() -> None:
    config = config_of(specimen__thickness_angstrom=(6.0, 12.0), specimen__box_angstrom=BOX)
    record = json.loads(samples_of(config)[0].extra["stemdl_provenance"])
    drawn = [specimen["box_angstrom"][2] for specimen in record["specimens"]]
    assert len(set(drawn)) == 3
    assert all(6.0 <= thickness < 12.0 for thickness in drawn)


def test_where_a_crystal_belongs_depends_on_nothing_else() -> None:
    config = config_of()
    every, refused = choose_crystals(config)
    assert sorted(one.crystal.name for one in every) == sorted(NAMES)
    assert refused == []
    assert {one.split for one in every} == {"train", "dev", "test"}
    assert [one.crystal.name for one in every] != sorted(NAMES), "shuffled"
    for most in (1, 3):
        some, _ = choose_crystals(config, most)
        assert [(one.crystal.name, one.number, one.split) for one in some] == [
            (one.crystal.name, one.number, one.split) for one in every[:most]
        ]


def test_one_material_is_for_training() -> None:
    (one,), _ = choose_crystals(config_of(crystals={"include": ("Al-fcc",)}))
    assert one.split == "train"
