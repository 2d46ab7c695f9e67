"""From a configuration to patterns: geometry, frozen phonons, scan noise and source; rings of a real crystal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data_gen.engines import ImagingSetup
from data_gen.engines.torch_engine import TorchEngine
from data_gen.imaging import GridMismatch, image, optics_of, setup_for
from data_gen.materials import library
from data_gen.specimen import cut_specimen, displaced
from minimal_config import MINIMAL
from physics_cases import FCC, cubic, random_atoms
from stemdl.config import Config, load_config
from stemdl.physics.detector import finite_source
from stemdl.physics.grid import Grid
from stemdl.physics.probe import Optics

SEEDS = [(1, 6, 0, 0), (1, 6, 0, 1), (1, 6, 0, 2)]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return _config(tmp_path)


def _config(folder: Path, *overrides: str) -> Config:
    file = folder / "config.yaml"
    file.write_text(MINIMAL, encoding="utf-8")
    small = ["scan.positions=[2, 3]", "simulation.pixel_angstrom=0.5", "held_out.pixel_angstrom=0.5"]
    small += ["detector.pixels=[24, 20]", *overrides]
    return load_config(file, small)


def _average(config: Config, setup: ImagingSetup, seeds: Sequence[Sequence[int]]) -> torch.Tensor:
    engine, at_rest = TorchEngine(), random_atoms(80, (24.0, 24.0, 6.0), seed=1)
    sigma = config.specimen.displacement_sigma_angstrom
    return torch.stack(
        [engine.patterns(*engine.slices(displaced(at_rest, sigma, seed), setup), setup) for seed in seeds]
    ).mean(dim=0)


def test_the_setup_is_that_of_the_configuration(tmp_path: Path) -> None:
    config = _config(
        tmp_path,
        "microscope.defocus_angstrom=70.0",
        "microscope.c3_angstrom=1e5",
        "microscope.astigmatism_angstrom=5.0",
        "microscope.astigmatism_azimuth_rad=0.3",
        "detector.dk_per_angstrom=0.08333333333333333",
        "simulation.probe_chunk=5",
        "simulation.parametrization=lobato",
        "simulation.algorithm=prism",
        "simulation.prism_interpolation=2",
    )
    setup = setup_for(config, config.simulation)
    assert setup.optics == Optics(100.0, 20.0, 70.0, 1e5, 5.0, 0.3) == optics_of(config)
    assert setup.grid == Grid(48, 24.0)
    assert setup.detector_binning == 2
    assert (setup.scan_shape, setup.detector_pixels) == ((2, 3), (24, 20))
    assert (setup.slice_angstrom, setup.probe_chunk, setup.parametrization) == (2.0, 5, "lobato")
    assert (setup.algorithm, setup.prism_interpolation) == ("prism", 2)
    assert setup.scan_offsets_angstrom == ()
    assert setup_for(config, config.held_out).slice_angstrom == 1.0


def test_scan_noise_is_where_the_probe_stands(config: Config) -> None:
    """A probe that is moved by whole pixels sees what it would see of a specimen moved the other way."""
    offsets = tuple((0.5 * n - 1.0, 1.0 - 0.5 * n) for n in range(6))
    setup = setup_for(config, config.simulation, offsets)
    raster = setup_for(config, config.simulation).positions()
    assert torch.equal(setup.positions(), raster + torch.tensor(offsets, dtype=torch.float64))
    at_rest = random_atoms(80, (24.0, 24.0, 6.0), seed=1)
    found = image(TorchEngine(), at_rest, setup, config, config.simulation, SEEDS[:1])
    for number, (y, x) in enumerate(offsets):
        moved = at_rest.positions_angstrom - np.array([x, y, 0.0])
        moved[:, :2] %= 24.0
        there = replace(at_rest, positions_angstrom=moved)
        still = setup_for(config, config.simulation)
        other = image(TorchEngine(), there, still, config, config.simulation, SEEDS[:1])
        row, column = divmod(number, 3)
        assert np.allclose(found[row, column], other[row, column], rtol=1e-4, atol=1e-8)
    assert not np.allclose(found, image(TorchEngine(), at_rest, still, config, config.simulation, SEEDS[:1]), rtol=0.1)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("detector.dk_per_angstrom=0.05", r"detector\.dk_per_angstrom: 0\.05 .* 1\.2 steps .*0\.04166666666666666"),
        ("detector.dk_per_angstrom=0.01", r"detector\.dk_per_angstrom: 0\.01 .* 0\.24 steps"),
        ("simulation.pixel_angstrom=0.37", r"pixel_angstrom: a box of 24\.0 Å is not a whole number of pixels"),
    ],
)
def test_grids_that_do_not_fit_are_refused(tmp_path: Path, override: str, message: str) -> None:
    config = _config(tmp_path, override)
    with pytest.raises(GridMismatch, match=message):
        setup_for(config, config.simulation)


def test_frozen_phonons_are_averaged(tmp_path: Path) -> None:
    config = _config(tmp_path, "simulation.frozen_phonons=3")
    setup = setup_for(config, config.simulation)
    at_rest = random_atoms(80, (24.0, 24.0, 6.0), seed=1)
    found = image(TorchEngine(), at_rest, setup, config, config.simulation, SEEDS)
    assert found.shape == (2, 3, 24, 20)
    assert found.dtype == np.float32
    assert np.allclose(found, _average(config, setup, SEEDS).numpy(), rtol=1e-5, atol=1e-9)
    again = image(TorchEngine(), at_rest, setup, config, config.simulation, SEEDS)
    assert np.array_equal(again, found)


def test_thermal_motion_damps_bragg_spots_by_debye_and_waller(tmp_path: Path) -> None:
    """One cell of aluminium, so thin that it scatters once: I falls by exp(-4π² σ² k²)."""
    sigma, specimen = 0.1, cubic(13, FCC, 4.05, (6, 6, 1))
    spots = []
    for overrides in (["0.0", "1"], [str(sigma), "8"]):
        config = _config(
            tmp_path,
            "microscope.semiangle_mrad=0.5",
            "scan.positions=[1, 1]",
            f"specimen.displacement_sigma_angstrom={overrides[0]}",
            f"simulation.frozen_phonons={overrides[1]}",
        )
        setup = replace(setup_for(config, config.simulation), grid=Grid(96, 24.3), detector_pixels=(64, 64))
        seeds = [(2, 6, 0, number) for number in range(config.simulation.frozen_phonons)]
        pattern = image(TorchEngine(), specimen, setup, config, config.simulation, seeds)[0, 0]
        spots.append([pattern[32 + 24, 32] + pattern[32 - 24, 32] + pattern[32, 32 + 24] + pattern[32, 32 - 24]])
    k = 4 / 4.05  # of 400
    assert spots[1][0] / spots[0][0] == pytest.approx(np.exp(-4 * np.pi**2 * sigma**2 * k**2), rel=0.05)


def test_the_number_of_seeds_is_that_of_the_configurations(config: Config) -> None:
    setup = setup_for(config, config.simulation)
    with pytest.raises(ValueError, match="3 seeds for 1"):
        image(TorchEngine(), random_atoms(9, (24.0, 24.0, 6.0), 1), setup, config, config.simulation, SEEDS)


def test_the_source_is_applied_and_the_detector_is_not(tmp_path: Path) -> None:
    effects = ["detector.blur_sigma_pixels=0.7", "detector.dose_e_per_a2=10", "detector.dead_fraction=0.5"]
    config = _config(tmp_path, "microscope.source_sigma_angstrom=1.0", *effects)
    setup = setup_for(config, config.simulation)
    at_rest = random_atoms(80, (24.0, 24.0, 6.0), seed=1)
    found = image(TorchEngine(), at_rest, setup, config, config.simulation, SEEDS[:1])
    sharp = _average(config, setup, SEEDS[:1])
    expected = finite_source(sharp, (0.5, 0.5))  # steps of 2 Å
    assert np.allclose(found, expected.numpy(), rtol=1e-5, atol=1e-9)
    assert float((expected - sharp).norm() / sharp.norm()) > 0.002
    assert float(found.sum(axis=(2, 3)).max()) <= 1


def test_rings_of_turned_crystals_stand_at_one_over_d(tmp_path: Path) -> None:
    """Gold [001] at any in-plane rotation, parallel beam: rings at λ/d of 200 and 220, whatever the box."""
    config = _config(tmp_path, "microscope.semiangle_mrad=1.0", "scan.positions=[1, 1]")
    setup = replace(setup_for(config, config.simulation), grid=Grid(96, 24.0), detector_pixels=(64, 64))
    gold = next(crystal for crystal in library() if crystal.name == "Au-fcc")
    total = np.zeros((64, 64))
    for item in range(8):
        specimen = cut_specimen(
            gold,
            (24.0, 24.0, 8.0),
            zone_axes=[(0, 0, 1)],
            tilt_mrad=0.0,
            displacement_sigma_angstrom=0.0,
            rng_seed=(5, item),
        )
        total += image(TorchEngine(), specimen, setup, config, config.simulation, [(5, item, 0)])[0, 0]
    row, column = np.indices(total.shape) - 32
    radius = np.round(np.hypot(row, column)).astype(int)
    profile = np.bincount(radius.ravel(), total.ravel())[:32] / np.bincount(radius.ravel())[:32]
    a = gold.cell_angstrom[0, 0]
    for order in (2.0, 2.0 * 2**0.5):
        expected = order / a * 24.0  # pixels of 1/24 Å
        near = slice(round(expected) - 3, round(expected) + 4)
        assert abs(near.start + int(profile[near].argmax()) - expected) <= 1
        between = profile[round(expected) - 3]
        assert profile[near].max() > 3 * between
    mrad = 1e3 * setup.optics.wavelength_angstrom * 2 / a
    assert mrad == pytest.approx(18.15, abs=0.05)  # λ/d of gold 200 at 100 keV
