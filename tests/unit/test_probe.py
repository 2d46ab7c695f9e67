"""The probe: its intensity, where it stands, where it is in focus, what the aberrations do to it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from physics_cases import OPTICS, relative
from stemdl.physics.grid import Grid
from stemdl.physics.multislice import propagator
from stemdl.physics.probe import Optics, aberration_phase, aperture, probe_spectrum, probes, raster

GRID = Grid(96, 24.0)
IN_FOCUS = replace(OPTICS, defocus_angstrom=0.0)
CENTRE = torch.tensor([[12.0, 12.0]])


def _widths(intensity: torch.Tensor) -> tuple[float, float]:
    """Standard deviation along y and x in Å of what is brighter than a tenth of the maximum (tails cut off)."""
    core = torch.where(intensity > 0.1 * intensity.max(), intensity, 0)
    axis = torch.arange(GRID.pixels, dtype=torch.float64) * GRID.pixel_angstrom
    weight = core.to(torch.float64) / core.sum()
    result = []
    for sums in (weight.sum(dim=1), weight.sum(dim=0)):
        mean = (sums * axis).sum()
        result.append(float(((axis - mean).square() * sums).sum().sqrt()))
    return result[0], result[1]


def _at_depth(optics: Optics, depth_angstrom: float) -> torch.Tensor:
    """(n, n) intensity of a probe in the middle of the box, `depth_angstrom` further down."""
    wave = probes(optics, GRID, CENTRE)[0]
    moved: torch.Tensor = torch.fft.ifft2(torch.fft.fft2(wave) * propagator(optics, GRID, depth_angstrom))
    return moved.abs().square()


def test_every_probe_carries_one_electron() -> None:
    waves = probes(OPTICS, GRID, raster((3, 3), 2.1, 24.0))
    total = torch.fft.fft2(waves).abs().square().sum(dim=(1, 2))
    assert torch.allclose(total, torch.ones(9), atol=1e-5)
    in_real_space = waves.abs().square().sum(dim=(1, 2)) * GRID.pixels**2  # Parseval
    assert torch.allclose(in_real_space, torch.ones(9), atol=1e-5)


def test_raster_is_centred_and_row_major() -> None:
    positions = raster((2, 3), 1.5, 20.0)
    assert positions.tolist() == [[9.25, 8.5], [9.25, 10.0], [9.25, 11.5], [10.75, 8.5], [10.75, 10.0], [10.75, 11.5]]


def test_a_shift_by_whole_pixels_rolls_the_probe() -> None:
    at_origin = probes(OPTICS, GRID, torch.tensor([[0.0, 0.0]]))[0]
    moved = probes(OPTICS, GRID, torch.tensor([[5 * 0.25, 11 * 0.25]]))[0]
    assert relative(moved, at_origin.roll((5, 11), (0, 1))) < 1e-5


def test_a_shift_between_pixels_is_exact() -> None:
    """The shifted probe is the Fourier series of the spectrum, evaluated where the shifted grid stands."""
    y, x = 3.137, 20.481
    moved = probes(OPTICS, GRID, torch.tensor([[y, x]]))[0].to(torch.complex128)
    k = GRID.frequencies()
    spectrum = probe_spectrum(OPTICS, GRID)
    for row, column in ((0, 0), (12, 80), (15, 83), (40, 7)):
        wave_y = torch.exp(2j * math.pi * k * (row * 0.25 - y))
        wave_x = torch.exp(2j * math.pi * k * (column * 0.25 - x))
        expected = (spectrum * wave_y[:, None] * wave_x).sum() / GRID.pixels**2
        assert abs(moved[row, column] - expected) < 1e-5 * float(moved.abs().max())


def test_the_probe_stands_at_its_position() -> None:
    intensity = probes(IN_FOCUS, GRID, torch.tensor([[9.0, 15.5]]))[0].abs().square()
    assert divmod(int(intensity.argmax()), GRID.pixels) == (36, 62)


@pytest.mark.parametrize("pixels", [96, 97])
def test_the_aperture_has_the_area_of_its_semiangle(pixels: int) -> None:
    expected = math.pi * (20e-3 / OPTICS.wavelength_angstrom * 24.0) ** 2  # in points of the reciprocal grid
    assert float(aperture(OPTICS, Grid(pixels, 24.0)).sum()) == pytest.approx(expected, rel=0.01)


def test_a_probe_in_focus_has_the_width_of_an_airy_disc() -> None:
    k = 20e-3 / OPTICS.wavelength_angstrom
    intensity = probes(IN_FOCUS, Grid(512, 24.0), torch.tensor([[12.0, 12.0]]))[0, 256].abs().square()
    half = (intensity > 0.5 * intensity.max()).sum() * (24.0 / 512)
    assert float(half) == pytest.approx(0.514 / k, rel=0.05)  # full width at half maximum of (2 J1(u) / u)²


def test_positive_defocus_puts_the_focus_down_in_the_specimen() -> None:
    sharpest = float(_at_depth(IN_FOCUS, 0.0).max())
    peaks = {depth: float(_at_depth(OPTICS, depth).max()) for depth in (0.0, 80.0, 160.0)}
    assert peaks[80.0] == pytest.approx(sharpest, rel=1e-4)
    assert peaks[0.0] == pytest.approx(peaks[160.0], rel=1e-3)  # as far above the focus as below
    assert peaks[0.0] < 0.6 * sharpest  # λ / α² = 93 Å
    assert float(_at_depth(replace(OPTICS, defocus_angstrom=-80.0), 80.0).max()) < 0.1 * sharpest


def test_spherical_aberration_bends_marginal_rays_as_underfocus_bends_them_back() -> None:
    """The ray at α is displaced by C3 α³ - Δf α (Kirkland, eq. 2.10): flat phase where Δf = C3 α²."""
    c3, alpha = 1e7, 10e-3
    grid = Grid(960, 240.0)
    optics = replace(IN_FOCUS, c3_angstrom=c3, defocus_angstrom=c3 * alpha**2)
    phase = aberration_phase(optics, grid)[0, :480]
    angle = grid.frequencies()[:480] * optics.wavelength_angstrom
    ray = torch.gradient(phase, spacing=(angle,))[0] * optics.wavelength_angstrom / (2 * math.pi)
    expected = c3 * angle**3 - c3 * alpha**2 * angle
    inside = (angle > 0) & (angle < 20e-3)
    assert float((ray - expected)[inside].abs().max()) < 0.01 * float(expected[inside].abs().max())
    assert float(ray[(angle - alpha).abs().argmin()]) == pytest.approx(0, abs=2.0)


@pytest.mark.parametrize(("azimuth_rad", "narrow_axis"), [(0.0, 0), (math.pi / 2, 1)])
def test_astigmatism_makes_two_line_foci(azimuth_rad: float, narrow_axis: int) -> None:
    """C12 cos 2(φ - φ12) adds to C10 along the azimuth (x for 0) and is taken off across it."""
    optics = replace(IN_FOCUS, astigmatism_angstrom=80.0, astigmatism_azimuth_rad=azimuth_rad)
    below, above = _widths(_at_depth(optics, 80.0)), _widths(_at_depth(optics, -80.0))
    assert below[narrow_axis] < 0.5 * below[1 - narrow_axis]
    assert above[1 - narrow_axis] < 0.5 * above[narrow_axis]


def test_grid_refuses_a_box_of_broken_pixels() -> None:
    assert Grid.from_pixel(24.0, 1 / 3).pixels == 72
    with pytest.raises(ValueError, match="not a whole number of pixels"):
        Grid.from_pixel(24.0, 0.37)
