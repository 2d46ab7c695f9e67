"""Physical constants and the two numbers that a beam energy sets: wavelength and interaction parameter."""

from __future__ import annotations

import math

PLANCK_J_S = 6.62607015e-34
LIGHT_SPEED_M_PER_S = 299792458.0
ELECTRON_MASS_KG = 9.1093837015e-31
ELEMENTARY_CHARGE_C = 1.602176634e-19

ANGSTROM_PER_M = 1e10

SCATTERING_FACTOR_TO_V_A2 = PLANCK_J_S**2 / (2 * math.pi * ELECTRON_MASS_KG * ELEMENTARY_CHARGE_C) * ANGSTROM_PER_M**2
"""h²/(2π m e) in V·Å²: a scattering factor in Å times this is the Fourier transform of the projected potential
in V·Å per Å⁻² (Kirkland, Advanced Computing in Electron Microscopy, 3rd ed., eq. C.20); about 47.878."""


def wavelength_angstrom(energy_kev: float) -> float:
    """Relativistic de Broglie wavelength in Å of an electron of `energy_kev` (Kirkland, eq. 2.5).

    Raises ValueError where the energy is not positive.
    """
    if not energy_kev > 0:
        raise ValueError(f"beam energy must be positive, found {energy_kev} keV")
    energy_j = energy_kev * 1e3 * ELEMENTARY_CHARGE_C
    rest_j = ELECTRON_MASS_KG * LIGHT_SPEED_M_PER_S**2
    return PLANCK_J_S * LIGHT_SPEED_M_PER_S / math.sqrt(energy_j * (2 * rest_j + energy_j)) * ANGSTROM_PER_M


def interaction_parameter(energy_kev: float) -> float:
    """σ in rad/(V·Å): the phase that a projected potential of 1 V·Å adds to the wave (Kirkland, eq. 5.6)."""
    rest_kev = ELECTRON_MASS_KG * LIGHT_SPEED_M_PER_S**2 / ELEMENTARY_CHARGE_C / 1e3
    mass_kg = ELECTRON_MASS_KG * (1 + energy_kev / rest_kev)
    per_v_m = 2 * math.pi * mass_kg * ELEMENTARY_CHARGE_C * (wavelength_angstrom(energy_kev) / ANGSTROM_PER_M)
    return per_v_m / PLANCK_J_S**2 / ANGSTROM_PER_M
