"""How long a sample takes, estimated from its size alone.

The choice between multislice and PRISM decides the last bits of a sample, so it must not depend on a clock: the times
below are fits to measurements on one thread of one machine, written down as constants. On another machine all of them
change by about the same factor, which leaves both the choice and the order of a work list as they are.
"""

from __future__ import annotations

import math

from data_gen.engines.base import ImagingSetup
from stemdl.errors import UserError

_WAVE_S_PER_POINT = 6.5e-9
"""One slice of one wave, per point of the grid."""
_ATOM_S_PER_POINT = 7e-11
"""One atom's part of the structure factors, per point of the grid."""
_ATOM_S = 1e-6
_SLICE_S_PER_POINT = 3e-8
"""One slice's form factors, transform, and transmission function, per point of the grid."""
_SUM_S = 1.6e-10
"""One multiplication and addition of complex numbers in PRISM's sum over beams."""
_DISPLACED_S_PER_ATOM = 1e-6


def multislice_seconds(pixels: int, slices: int, probes: int) -> float:
    """Propagation of `probes` waves of pixels² points through `slices` slices, in s."""
    return _WAVE_S_PER_POINT * pixels**2 * slices * probes


def prism_seconds(pixels: int, slices: int, probes: int, beams: int, frequencies: int) -> float:
    """The same by PRISM: `beams` waves through the slices, then sums over the beams at `frequencies` for each probe."""
    return multislice_seconds(pixels, slices, beams) + _SUM_S * beams * frequencies * probes


def potential_seconds(atoms: float, pixels: int, slices: int) -> float:
    """Slices of projected potential and their transmission functions, in s."""
    return atoms * (_ATOM_S + _ATOM_S_PER_POINT * pixels**2) + _SLICE_S_PER_POINT * pixels**2 * slices


def beam_count(setup: ImagingSetup, interpolation: int) -> int:
    """Plane waves inside the (soft) aperture, from its area."""
    optics = setup.optics
    radius = optics.semiangle_mrad * 1e-3 / optics.wavelength_angstrom * setup.grid.box_angstrom + 0.5
    return max(1, round(math.pi * radius**2 / interpolation**2))


def chosen_algorithm(setup: ImagingSetup, slices: int) -> str:
    """ "multislice" or "prism": what the setup asks for, or of both the one that takes less time and gives the same.

    Raises UserError where the setup asks for something else.
    """
    if setup.algorithm in ("multislice", "prism"):
        return setup.algorithm
    if setup.algorithm != "auto":
        raise UserError(f"simulation.algorithm: {setup.algorithm!r}; known are 'auto', 'multislice', 'prism'")
    return "prism" if _prism_seconds(setup, slices, 1) < _multislice_seconds(setup, slices) else "multislice"


def estimated_seconds(setup: ImagingSetup, atoms: float, thickness_angstrom: float, frozen_phonons: int) -> float:
    """One item of a work list: `frozen_phonons` times displacement, potential and patterns, in s.

    atoms: their number, or what is expected of it (density times the volume of the box).
    """
    pixels, slices = setup.grid.pixels, max(1, round(thickness_angstrom / setup.slice_angstrom))
    propagation = (
        _multislice_seconds(setup, slices)
        if chosen_algorithm(setup, slices) == "multislice"
        else _prism_seconds(setup, slices, setup.prism_interpolation if setup.algorithm == "prism" else 1)
    )
    once = potential_seconds(atoms, pixels, slices) + propagation + _DISPLACED_S_PER_ATOM * atoms
    return frozen_phonons * once


def _multislice_seconds(setup: ImagingSetup, slices: int) -> float:
    return multislice_seconds(setup.grid.pixels, slices, setup.probes)


def _prism_seconds(setup: ImagingSetup, slices: int, interpolation: int) -> float:
    pixels = setup.grid.pixels
    rows, columns = (min(pixels, count * setup.detector_binning) for count in setup.detector_pixels)
    frequencies = rows * columns if interpolation == 1 else (pixels // interpolation) ** 2
    return prism_seconds(pixels, slices, setup.probes, beam_count(setup, interpolation), frequencies)
