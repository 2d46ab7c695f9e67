"""Wavelength and interaction parameter against printed tables."""

from __future__ import annotations

import math

import pytest

from stemdl.physics.constants import SCATTERING_FACTOR_TO_V_A2, interaction_parameter, wavelength_angstrom


@pytest.mark.parametrize(
    ("energy_kev", "wavelength", "sigma"),
    [
        (80.0, 0.041757, 1.0087e-3),
        (100.0, 0.037014, 9.2440e-4),
        (200.0, 0.025079, 7.2884e-4),
        (300.0, 0.019687, 6.5262e-4),
    ],
)
def test_wavelength_and_interaction_parameter(energy_kev: float, wavelength: float, sigma: float) -> None:
    assert wavelength_angstrom(energy_kev) == pytest.approx(wavelength, rel=1e-4)
    assert interaction_parameter(energy_kev) == pytest.approx(sigma, rel=1e-3)


def test_a_slow_electron_obeys_the_classical_formula() -> None:
    # λ = h / √(2 m e U): 12.264 Å / √(U in V)
    assert wavelength_angstrom(0.1) == pytest.approx(12.2643 / math.sqrt(100), rel=1e-4)


def test_scattering_factor_to_potential() -> None:
    # h² / (2π m e) = 2π a₀ e² / (4π ε₀ e), with a₀ = 0.529177 Å and e² / 4π ε₀ = 14.39964 eV·Å
    assert pytest.approx(2 * math.pi * 0.529177 * 14.39964, rel=1e-5) == SCATTERING_FACTOR_TO_V_A2


@pytest.mark.parametrize("energy_kev", [0.0, -100.0, math.nan])
def test_an_energy_that_is_not_positive_is_refused(energy_kev: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        wavelength_angstrom(energy_kev)
