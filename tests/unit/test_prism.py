"""PRISM: the same as multislice with interpolation 1; how far off above it; and only what the detector needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from data_gen.engines import ImagingSetup
from data_gen.engines.prism import beam_waves, beams_of
from data_gen.engines.torch_engine import TorchEngine
from data_gen.potential import potential_slices
from physics_cases import DIAMOND, FCC, OPTICS, cubic, random_potential, relative
from stemdl.errors import UserError
from stemdl.physics.grid import Grid
from stemdl.physics.probe import Optics, probe_spectrum

ABERRATED = replace(
    OPTICS, semiangle_mrad=15.0, c3_angstrom=1e6, astigmatism_angstrom=40.0, astigmatism_azimuth_rad=0.4
)
SETUP = ImagingSetup(
    optics=OPTICS,
    grid=Grid(64, 16.0),
    scan_shape=(2, 3),
    scan_step_angstrom=1.37,
    detector_pixels=(32, 30),
    detector_binning=1,
    slice_angstrom=2.0,
    parametrization="kirkland",
    probe_chunk=7,
    algorithm="prism",
)


@pytest.mark.parametrize("optics", [OPTICS, ABERRATED])
@pytest.mark.parametrize("detector", [((32, 30), 1), ((64, 64), 1), ((70, 50), 1), ((15, 16), 2), ((9, 7), 3)])
def test_without_interpolation_it_is_multislice(optics: Optics, detector: tuple[tuple[int, int], int]) -> None:
    setup = replace(SETUP, optics=optics, detector_pixels=detector[0], detector_binning=detector[1])
    potential = random_potential(setup.grid, 300.0, 1, slices=5)
    expected = TorchEngine().patterns(potential, 2.0, replace(setup, algorithm="multislice"))
    assert relative(TorchEngine().patterns(potential, 2.0, setup), expected) < 1e-5
    assert relative(TorchEngine(fftw=False).patterns(potential, 2.0, setup), expected) < 1e-5


@pytest.mark.parametrize("pixels", [45, 60])
def test_on_other_grids_too(pixels: int) -> None:
    setup = replace(SETUP, grid=Grid(pixels, pixels / 4), detector_pixels=(pixels // 2, pixels // 3))
    potential = random_potential(setup.grid, 300.0, 1, slices=3)
    expected = TorchEngine().patterns(potential, 2.0, replace(setup, algorithm="multislice"))
    assert relative(TorchEngine().patterns(potential, 2.0, setup), expected) < 1e-5


def test_scan_offsets_move_the_probes() -> None:
    offsets = tuple((0.1 * number, -0.2 * number) for number in range(6))
    setup = replace(SETUP, scan_offsets_angstrom=offsets)
    potential = random_potential(setup.grid, 300.0, 1, slices=3)
    found = TorchEngine().patterns(potential, 2.0, setup)
    assert relative(found, TorchEngine().patterns(potential, 2.0, replace(setup, algorithm="multislice"))) < 1e-5
    assert relative(found, TorchEngine().patterns(potential, 2.0, SETUP)) > 0.05


@pytest.mark.parametrize("interpolation", [1, 2])
def test_patterns_do_not_depend_on_the_waves_held_at_once(interpolation: int) -> None:
    setup = replace(SETUP, prism_interpolation=interpolation)
    potential = random_potential(setup.grid, 300.0, 1, slices=3)
    first = TorchEngine().patterns(potential, 2.0, setup)
    assert torch.equal(TorchEngine().patterns(potential, 2.0, replace(setup, probe_chunk=64)), first)


def test_beams_make_the_probe() -> None:
    """Weights times plane waves are the probe: Σ|w|² = 1, and the spectrum is the probe's."""
    beams, weights = beams_of(ABERRATED, SETUP.grid, 1)
    assert float(weights.abs().square().sum()) == pytest.approx(1.0)
    wave = torch.einsum("b,bij->ij", weights, beam_waves(beams, SETUP.grid).to(torch.complex128))
    expected = probe_spectrum(ABERRATED, SETUP.grid)
    assert float((torch.fft.fft2(wave) - expected).norm() / expected.norm()) < 1e-6


def test_interpolation_takes_every_second_beam_along_each_axis() -> None:
    all_beams, some = beams_of(OPTICS, SETUP.grid, 1)[0], beams_of(OPTICS, SETUP.grid, 2)[0]
    assert bool((some % 2 == 0).all())
    assert len(all_beams) / len(some) == pytest.approx(4, rel=0.2)


def test_in_vacuum_interpolation_only_cuts_the_tails_of_the_probe() -> None:
    """A window of half the box around a probe in focus holds nearly all of it, wherever the probe stands."""
    setup = replace(
        SETUP,
        optics=replace(OPTICS, defocus_angstrom=0.0),
        grid=Grid(128, 32.0),
        scan_shape=(2, 2),
        scan_step_angstrom=15.7,  # windows reach over the edge of the box
        detector_pixels=(32, 32),
        detector_binning=2,
        prism_interpolation=2,
    )
    patterns = TorchEngine().patterns(torch.zeros(1, 128, 128), 1.0, setup)
    expected = TorchEngine().patterns(torch.zeros(1, 128, 128), 1.0, replace(setup, algorithm="multislice"))
    assert float(patterns.sum(dim=(2, 3)).min()) > 0.99
    assert relative(patterns, expected) < 0.05


@pytest.mark.parametrize(("number", "sites", "lattice"), [(14, DIAMOND, 5.431), (79, FCC, 4.078)])
def test_the_error_of_interpolation_in_crystals(
    number: int, sites: tuple[tuple[float, float, float], ...], lattice: float
) -> None:
    """Factor 2: a few per cent where a detector pixel is as wide as the interpolated beams are apart, and more where
    it resolves what the cut window blurs, the edges of the discs; factor 4 is worse. This is what the manual says."""
    cells = round(32 / lattice)
    specimen = cubic(number, sites, lattice, (cells, cells, 4))
    grid = Grid(128, specimen.box_angstrom[0])
    slices, thickness = potential_slices(specimen, grid, 2.0, "kirkland")
    errors = {}
    for binning in (1, 2):
        pixels = (64 // binning, 64 // binning)
        setup = replace(SETUP, grid=grid, detector_pixels=pixels, detector_binning=binning, scan_shape=(2, 2))
        expected = TorchEngine().patterns(slices, thickness, replace(setup, algorithm="multislice"))
        for factor in (2, 4):
            found = TorchEngine().patterns(slices, thickness, replace(setup, prism_interpolation=factor))
            errors[binning, factor] = relative(found, expected)
    assert 0.005 < errors[2, 2] < 0.06
    assert errors[2, 2] < errors[1, 2] < 0.2
    assert errors[1, 2] < errors[1, 4]


def test_a_factor_that_does_not_divide_the_grid_is_refused() -> None:
    with pytest.raises(UserError, match=r"prism_interpolation: 3 does not divide the grid of 64 pixels"):
        TorchEngine().patterns(torch.zeros(1, 64, 64), 1.0, replace(SETUP, prism_interpolation=3))


def test_auto_is_exact_whatever_the_factor() -> None:
    """Interpolation is for those who ask for PRISM by name."""
    setup = replace(SETUP, algorithm="auto", prism_interpolation=3, scan_shape=(30, 30), scan_step_angstrom=0.3)
    potential = random_potential(setup.grid, 300.0, 1, slices=40)
    expected = TorchEngine().patterns(potential, 2.0, replace(setup, algorithm="multislice"))
    found = TorchEngine().patterns(potential, 2.0, setup)
    assert not torch.equal(found, expected)  # PRISM was chosen
    assert relative(found, expected) < 1e-5
