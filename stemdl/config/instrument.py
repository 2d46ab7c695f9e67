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
    jitter_sigma_angstrom: NonNegativeFloat = 0.0
    """Scan noise: standard deviation in Å, per axis, of each position about its place in the raster."""
    drift_angstrom: NonNegativeFloat = 0.0
    """Drift of the specimen from the first position to the last in Å, in a direction drawn for each sample."""

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
    """Standard deviation in pixels of a Gaussian point spread of the detector; applied when samples are loaded."""
    dose_e_per_a2: PositiveFloat | None = None
    """Dose in electrons per Å²; counts per pattern are dose times step². Leave out (null) for no noise."""
    dead_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of the pixels that are dead and read zero; applied when samples are loaded, as all that follows."""
    hot_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of the pixels that are hot: they read `hot_electrons` on top, or the saturation where there is one."""
    hot_electrons: PositiveFloat = 1000.0
    """What a hot pixel reads in excess, in electrons."""
    saturation_electrons: PositiveFloat | None = None
    """Reading in electrons at which a pixel saturates; null for none. Needs a dose."""
    adu_per_electron: PositiveFloat | None = None
    """Gain: readings are rounded to whole ADU (analogue-digital units); null for no rounding. Needs a dose."""
    readout_sigma_adu: NonNegativeFloat = 0.0
    """Standard deviation of the readout noise in ADU; needs a gain."""
