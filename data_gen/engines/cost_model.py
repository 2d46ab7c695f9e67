"""How long a sample takes, estimated from its size alone.

The choice between multislice and PRISM decides the last bits of a sample, so it must not depend on a clock: the times
below are fits to measurements on one thread of one machine, written down as constants. On another machine all of them
change by about the same factor, which leaves both the choice and the order of a work list as they are.

How they were measured (AMD EPYC with AVX2, one thread, smallest of several CPU times, 2026-11-30): a wave's share of a
slice from patterns of 1 and 64 probes through 10 and 20 slices, on 64 to 512 pixels; beams and sums by timing the parts
of PRISM alone; potentials of Si, SrTiO3 and Au, 20 nm thick, on 96, 128 and 256 pixels. `stemdl bench prism` compares
estimates with measurements again.
"""

from __future__ import annotations

import math

from data_gen.engines.base import ImagingSetup
from stemdl.errors import UserError

_WAVE_S_PER_POINT, _WAVE_S_PER_POINT_AND_PIXEL = 3.2e-9, 2.5e-12
"""One wave through one slice, per point of the grid; larger grids leave the cache."""
_PROBE_S_PER_POINT = 6e-9
"""Start of a wave, intensity and detector, per point of the grid."""
_BEAM_S_PER_POINT = 9e-9
"""The same for a plane wave of PRISM, whose exit wave is kept."""
_SUM_S, _WINDOW_SUM_S = 0.115e-9, 0.16e-9
"""One complex multiplication and addition of PRISM's matrix product: exact, and in windows (interpolated)."""
_WINDOW_S_PER_POINT = 25e-9
"""Transform and detector of a probe put together from a window, per point of the grid."""
_ATOM_S, _ATOM_S_PER_POINT = 0.45e-6, 3.4e-11
"""One atom's part of the structure factors of its slice, and that per point of the grid."""
_SLICE_S_PER_POINT = 15e-9
"""Form factors and transform of a slice (a third), its transmission function (the rest), per point of the grid."""
_ATOM_AT_REST_S, _TARGET_S = 0.2e-6, 1.3e-6
"""One atom cut out of the crystal and displaced; its part of the potential that the network is to find."""
_LARGEST_SCATTERING_BYTES = 2**30
"""Exit waves of all beams above this size are not chosen by "auto"."""


def multislice_seconds(pixels: int, slices: int, probes: int) -> float:
    """`probes` waves of pixels² points through `slices` slices, in s."""
    per_slice = _WAVE_S_PER_POINT + _WAVE_S_PER_POINT_AND_PIXEL * pixels
    return (per_slice * slices + _PROBE_S_PER_POINT) * pixels**2 * probes


def prism_seconds(pixels: int, slices: int, probes: int, beams: int, frequencies: int, interpolation: int = 1) -> float:
    """The same by PRISM, in s: `beams` waves through the slices, then for each probe a sum over the beams.

    frequencies: how many of them the detector needs of a probe (interpolation 1 alone).
    """
    points = pixels**2
    per_slice = _WAVE_S_PER_POINT + _WAVE_S_PER_POINT_AND_PIXEL * pixels
    waves = (per_slice * slices + _BEAM_S_PER_POINT) * points * beams
    if interpolation == 1:
        return waves + _SUM_S * beams * frequencies * probes
    return waves + (_WINDOW_SUM_S * beams * points / interpolation + _WINDOW_S_PER_POINT * points) * probes


def potential_seconds(atoms: float, pixels: int, slices: int) -> float:
    """Slices of projected potential and their transmission functions, in s."""
    return atoms * (_ATOM_S + _ATOM_S_PER_POINT * pixels**2) + _SLICE_S_PER_POINT * pixels**2 * slices


def beam_count(setup: ImagingSetup, interpolation: int) -> int:
    """Plane waves inside the (soft) aperture, from its area."""
    optics = setup.optics
    window = setup.grid.box_angstrom / interpolation
    radius = optics.semiangle_mrad * 1e-3 / optics.wavelength_angstrom * window + 0.5
    return max(1, round(math.pi * radius**2))


def chosen_algorithm(setup: ImagingSetup, slices: int) -> str:
    """ "multislice" or "prism": what the setup asks for; or, of both, the one that takes less time to the same result.

    Raises UserError where the setup asks for something else.
    """
    if setup.algorithm in ("multislice", "prism"):
        return setup.algorithm
    if setup.algorithm != "auto":
        raise UserError(f"simulation.algorithm: {setup.algorithm!r}; known are 'auto', 'multislice', 'prism'")
    held = 8 * beam_count(setup, 1) * _frequencies(setup)
    if held > _LARGEST_SCATTERING_BYTES or propagation_seconds(setup, slices, "multislice") <= propagation_seconds(
        setup, slices, "prism"
    ):
        return "multislice"
    return "prism"


def propagation_seconds(setup: ImagingSetup, slices: int, algorithm: str) -> float:
    """Patterns of one specimen from its slices by "multislice" or "prism", in s; PRISM is interpolated where the setup
    asks for PRISM, and exact otherwise."""
    pixels = setup.grid.pixels
    if algorithm == "multislice":
        return multislice_seconds(pixels, slices, setup.probes)
    interpolation = setup.prism_interpolation if setup.algorithm == "prism" else 1
    beams = beam_count(setup, interpolation)
    return prism_seconds(pixels, slices, setup.probes, beams, _frequencies(setup), interpolation)


def estimated_seconds(setup: ImagingSetup, atoms: float, thickness_angstrom: float, frozen_phonons: int) -> float:
    """One item of a work list, in s: the specimen, then `frozen_phonons` times potentials and patterns.

    atoms: their number, or what is expected of it (density times the volume of the box).
    """
    pixels, slices = setup.grid.pixels, max(1, round(thickness_angstrom / setup.slice_angstrom))
    patterns = propagation_seconds(setup, slices, chosen_algorithm(setup, slices))
    target = _TARGET_S * atoms
    once = potential_seconds(atoms, pixels, slices) + patterns + target + _ATOM_AT_REST_S * atoms
    return _ATOM_AT_REST_S * atoms + frozen_phonons * once


def _frequencies(setup: ImagingSetup) -> int:
    """Frequencies that the detector needs, as `prism` takes them."""
    pixels = setup.grid.pixels
    rows, columns = (
        min(pixels, 2 * math.ceil(pixels / 3) + 2, count * setup.detector_binning + 2)
        for count in setup.detector_pixels
    )
    return rows * columns
