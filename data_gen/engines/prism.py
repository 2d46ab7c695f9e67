"""PRISM: the plane waves of the aperture pass the specimen once, and every probe is a sum of them.

Ophus, Adv. Struct. Chem. Imaging 3, 13 (2017). With interpolation factor 1 this is multislice, exact to rounding, and
costs one wave per beam in place of one per probe. With a factor f, every f-th beam along each axis is taken: their sum
repeats f times along the box, so the exit wave is cut to the 1/f of the box around the probe. That is right for a
probe that stays, tails and scattering included, inside this window, and an approximation for all others.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from data_gen.engines.base import ImagingSetup
from data_gen.engines.propagation import Propagation
from stemdl.errors import UserError
from stemdl.physics.detector import to_detector
from stemdl.physics.grid import Grid
from stemdl.physics.probe import Optics, probe_spectrum

_PROBES_AT_ONCE = 64
"""Rows of the matrix product: fixed, for its last bits may depend on it."""


def prism_patterns(propagation: Propagation, setup: ImagingSetup) -> torch.Tensor:
    """(sy, sx, qy, qx) float32 fractions of the incident beam.

    The exit waves of all beams are held at once: (beams, frequencies the detector needs) complex64 with interpolation
    1, (beams, n, n) above. Raises UserError where the factor does not divide the grid.
    """
    if setup.grid.pixels % setup.prism_interpolation:
        raise UserError(
            f"simulation.prism_interpolation: {setup.prism_interpolation} does not divide the grid of"
            f" {setup.grid.pixels} pixels, of which a probe sees a whole part"
        )
    beams, weights = beams_of(setup.optics, setup.grid, setup.prism_interpolation)
    if setup.prism_interpolation == 1:
        return _exact(propagation, setup, beams, weights)
    return _interpolated(propagation, setup, beams, weights)


def beams_of(optics: Optics, grid: Grid, interpolation: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(b, 2) int64 signed indices (ky, kx) of the plane waves inside the aperture whose indices are multiples of the
    interpolation factor, and their (b,) complex128 weights in the probe at the origin, Σ|w|² = 1.

    They are the probe on the grid of the window, so the edge of the aperture is as wide as its reciprocal pixel.
    """
    window = Grid(grid.pixels // interpolation, grid.box_angstrom / interpolation)
    spectrum = probe_spectrum(optics, window)
    rows, columns = (spectrum.abs() > 0).nonzero(as_tuple=True)
    signed = (window.frequencies() * grid.box_angstrom).round().to(torch.int64)
    return torch.stack([signed[rows], signed[columns]], dim=1), spectrum[rows, columns]


def beam_waves(beams: torch.Tensor, grid: Grid) -> torch.Tensor:
    """(b, n, n) complex64 plane waves in real space, each of value 1 in its own pixel of reciprocal space."""
    n = grid.pixels
    turns = (beams[:, :, None] * torch.arange(n) % n).to(torch.float64) / n  # (b, 2, n)
    along = torch.polar(torch.full_like(turns, 1 / n), 2 * math.pi * turns)
    return (along[:, 0, :, None] * along[:, 1, None, :]).to(torch.complex64)


def _coefficients(setup: ImagingSetup, beams: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """(p, b) complex64 share of each beam in each probe."""
    turns = setup.positions() @ (beams.to(torch.float64) / setup.grid.box_angstrom).T
    turns -= turns.round()
    return (torch.polar(torch.ones_like(turns), -2 * math.pi * turns) * weights).to(torch.complex64)


def _exact(propagation: Propagation, setup: ImagingSetup, beams: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Matrix product of coefficients and exit waves, at the frequencies that the detector needs."""
    rows, columns = (_needed(setup.grid.pixels, count, setup.detector_binning) for count in setup.detector_pixels)
    exits = []
    for chunk in torch.split(beams, setup.probe_chunk):
        whole = propagation.exit_waves(beam_waves(chunk, setup.grid))
        exits.append(whole[:, rows.to(whole.device)][:, :, columns.to(whole.device)].flatten(1))
    scattering = torch.cat(exits)
    recorded = []
    for coefficients in torch.split(_coefficients(setup, beams, weights), _PROBES_AT_ONCE):
        waves = torch.mm(coefficients.to(scattering.device), scattering)
        intensity = torch.view_as_real(waves).square().sum(dim=-1).reshape(-1, len(rows), len(columns))
        recorded.append(to_detector(intensity, setup.detector_pixels, setup.detector_binning).cpu())
    return torch.cat(recorded).reshape(*setup.scan_shape, *setup.detector_pixels)


def _needed(n: int, count: int, binning: int) -> torch.Tensor:
    """Indices, FFT order, of the frequencies in a detector of `count` pixels along an axis, made symmetric; those
    beyond the anti-alias aperture hold nothing."""
    reach = min((count // 2) * binning + binning // 2 + 1, math.ceil(n / 3) + 1)
    size = min(n, 2 * reach)
    signed = np.fft.fftfreq(size, 1 / size).round().astype(np.int64)
    return torch.from_numpy(signed % n)


def _interpolated(
    propagation: Propagation, setup: ImagingSetup, beams: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Sums of exit waves in a window of real space around each probe, then a Fourier transform of the whole box.

    Probes whose windows have the same rows share one matrix product, over those rows of the box.
    """
    n, width = setup.grid.pixels, setup.grid.pixels // setup.prism_interpolation
    exits = [
        torch.fft.ifft2(propagation.exit_waves(beam_waves(chunk, setup.grid))).movedim(0, -1)
        for chunk in torch.split(beams, setup.probe_chunk)
    ]
    scattering = torch.cat(exits, dim=-1)  # y, x, beam
    device = scattering.device
    # A sum over 1/f² of the beams is f² times too weak, and its window holds 1/f² of the electrons of the whole box.
    coefficients = _coefficients(setup, beams, weights).to(device) * setup.prism_interpolation
    corners = (setup.positions() / setup.grid.pixel_angstrom).round().to(torch.int64) - width // 2
    recorded = torch.empty(setup.probes, *setup.detector_pixels)
    for corner in sorted(set(corners[:, 0].tolist())):
        rows = (torch.arange(corner, corner + width) % n).to(device)
        strip = scattering[rows].flatten(0, 1)
        for group in torch.split((corners[:, 0] == corner).nonzero()[:, 0], _PROBES_AT_ONCE):
            lines = torch.mm(coefficients[group.to(device)], strip.T).view(-1, width, n)
            columns = ((corners[group, 1, None] + torch.arange(width)) % n).to(device)
            waves = scattering.new_zeros(len(group), n, n)
            for wave, line, seen in zip(waves, lines, columns, strict=True):
                wave[rows[:, None], seen] = line[:, seen]
            intensity = torch.view_as_real(torch.fft.fft2(waves)).square().sum(dim=-1)
            recorded[group] = to_detector(intensity, setup.detector_pixels, setup.detector_binning).cpu()
    return recorded.reshape(*setup.scan_shape, *setup.detector_pixels)
