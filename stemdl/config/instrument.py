"""Sections that describe the microscope: beam and lenses, scan, detector."""

from __future__ import annotations

from pydantic import Field

from stemdl.config.base import IntPair, NonNegativeFloat, PositiveFloat, Section


class Microscope(Section):
    """The beam and the probe-forming lens."""

    energy_kev: float = Field(ge=10, le=1500)
    """Beam energy in keV (100 means 100 kV, not 100000)."""
    semiangle_mrad: float = Field(ge=0.5, le=150)
    """Convergence semi-angle of the probe-forming aperture in mrad."""
    defocus_angstrom: float = 0.0
    """Defocus in Å, -C10 as in abTEM: a positive one puts the focus that far below the entrance surface."""
    c3_angstrom: float = 0.0
    """Third-order spherical aberration C3 (Cs) in Å; 1 mm is 1e7 Å."""
    astigmatism_angstrom: NonNegativeFloat = 0.0
    """Magnitude of the two-fold astigmatism C12 in Å."""
    astigmatism_azimuth_rad: float = 0.0
    """Azimuth of the two-fold astigmatism in rad."""
    source_sigma_angstrom: NonNegativeFloat = 0.0
    """Standard deviation of the effective source in Å, a Gaussian over scan positions; 0 is a point source."""


class Scan(Section):
    """The positions of the probe: a square raster in the middle of the box."""

    positions: IntPair
    """Number of probe positions, rows (y) before columns (x)."""
    step_angstrom: PositiveFloat
    """Distance between neighbouring positions in Å."""

    @property
    def field_angstrom(self) -> tuple[float, float]:
        """Area (y, x) in Å that the positions stand for: each owns a square of one step."""
        return self.positions[0] * self.step_angstrom, self.positions[1] * self.step_angstrom


class Detector(Section):
    """The pixelated detector, fixed in reciprocal space and never by the size of a supercell."""

    pixels: IntPair
    """Detector pixels, rows (y) before columns (x); the unscattered beam falls on pixel (n // 2, n // 2)."""
    dk_per_angstrom: PositiveFloat
    """Reciprocal width of a detector pixel in 1/Å (without 2π)."""
    blur_sigma_pixels: NonNegativeFloat = 0.0
    """Standard deviation in pixels of a Gaussian point spread of the detector."""
    dose_e_per_a2: PositiveFloat | None = None
    """Dose in electrons per Å²; counts per pattern are dose times step². Leave out (null) for no noise."""
