"""The misfit between recorded and simulated patterns, its gradient and its curvature along a direction.

The model is a coarse multislice of a whole scan in which every slice holds the same share of one projected
potential. Its adjoint is written out by hand: for a few slices that costs a third of a general automatic
differentiation, and it is what makes the back-projection cheap enough to run on every training sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from stemdl.physics.constants import interaction_parameter
from stemdl.physics.detector import to_detector, to_detector_adjoint
from stemdl.physics.grid import Grid
from stemdl.physics.multislice import propagator
from stemdl.physics.probe import Optics, probes, raster

AMPLITUDE_FLOOR = 1e-9
"""Added to intensities (fractions of the beam) before the square root, whose slope has no bound at zero."""


@dataclass(frozen=True)
class ScanGeometry:
    """Scan and detector as the coarse model needs them."""

    scan_shape: tuple[int, int]
    scan_step_angstrom: float
    detector_pixels: tuple[int, int]
    detector_binning: int


class ScanModel:
    """Coarse multislice model of one scan: the same optics, positions and detector for every specimen.

    A potential is (n, n) float32 in V·Å on the whole periodic box, split evenly over `slices`; amplitudes are
    (sy, sx, qy, qx), the square root of intensities as fractions of the beam.
    """

    def __init__(
        self, optics: Optics, grid: Grid, geometry: ScanGeometry, *, slices: int, thickness_angstrom: float
    ) -> None:
        self.grid = grid
        self.geometry = geometry
        self.slices = slices
        self.sigma = interaction_parameter(optics.energy_kev)
        positions = raster(geometry.scan_shape, geometry.scan_step_angstrom, grid.box_angstrom)
        # Each slice stands for its whole slab, so it is put in the slab's middle: with few slices the error of putting
        # it at the entrance is a defocus of half a slab.
        half = propagator(optics, grid, thickness_angstrom / (2 * slices))
        self.waves = torch.fft.ifft2(torch.fft.fft2(probes(optics, grid, positions)) * half)
        self.kernel = propagator(optics, grid, thickness_angstrom / slices)
        density = (self.waves.abs().square()).sum(dim=0) * grid.pixels**2
        self.illumination = density / density.max()
        """(n, n) summed probe intensity, largest value 1."""

    def _forward(self, potential: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
        """Waves behind the transmission of each slice, exit waves in reciprocal space, and the transmission."""
        phase = potential * (self.sigma / self.slices)
        transmission = torch.polar(torch.ones_like(phase), phase)
        behind = [self.waves * transmission]
        for _ in range(self.slices - 1):
            spectrum = torch.fft.fft2(behind[-1]).mul_(self.kernel)
            behind.append(torch.fft.ifft2(spectrum).mul_(transmission))
        return behind, torch.fft.fft2(behind[-1]).mul_(self.kernel), transmission

    def _amplitude(self, exit_waves: torch.Tensor) -> torch.Tensor:
        # Products of whole complex numbers vectorise; their real and imaginary parts, taken apart first, do not.
        intensity = (exit_waves * exit_waves.conj()).real
        recorded = to_detector(intensity, self.geometry.detector_pixels, self.geometry.detector_binning)
        return (recorded + AMPLITUDE_FLOOR).sqrt_()

    def amplitudes(self, potential: torch.Tensor) -> torch.Tensor:
        """(sy, sx, qy, qx) amplitudes that the model predicts for a potential."""
        _, exit_waves, _ = self._forward(potential)
        return self._amplitude(exit_waves).reshape(*self.geometry.scan_shape, *self.geometry.detector_pixels)

    def linearise(self, potential: torch.Tensor, amplitude: torch.Tensor) -> Linearisation:
        """The model around a potential, compared with recorded amplitudes (sy, sx, qy, qx)."""
        behind, exit_waves, transmission = self._forward(potential)
        model = self._amplitude(exit_waves)
        residual = model - amplitude.reshape(model.shape)
        return Linearisation(self, behind, exit_waves, transmission, model, residual)


@dataclass
class Linearisation:
    """Forward state of the model at one potential: the misfit, its gradient, and directional derivatives."""

    model: ScanModel
    behind: list[torch.Tensor]
    exit_waves: torch.Tensor
    transmission: torch.Tensor
    amplitude: torch.Tensor
    residual: torch.Tensor
    """(p, qy, qx) model minus recorded amplitude."""

    @property
    def misfit(self) -> float:
        """Mean over positions of the summed squared residual of the amplitudes."""
        return float(self.residual.square().sum()) / self.residual.shape[0]

    def gradient(self) -> torch.Tensor:
        """(n, n) derivative of half the misfit with respect to the potential, per V·Å.

        With L = Σ (√(I + ε) - a)² / 2 the wave's adjoint is (√I - a) / (2 √I) Ψ, carried back through the conjugate
        propagators; each slice adds Re(conj(adjoint) iσψ) twice (Wirtinger calculus).
        """
        model = self.model
        weight = to_detector_adjoint(
            self.residual / (2 * self.amplitude), model.grid.pixels, model.geometry.detector_binning
        )
        adjoint = torch.fft.ifft2(self.exit_waves * weight * model.kernel.conj(), norm="forward")
        total = torch.zeros_like(model.illumination)
        for index in range(model.slices - 1, -1, -1):
            total -= torch.linalg.vecdot(adjoint, self.behind[index], dim=0).imag  # conj(adjoint) ψ over positions
            if index:
                spectrum = torch.fft.fft2(adjoint.mul_(self.transmission.conj()), norm="forward")
                adjoint = torch.fft.ifft2(spectrum.mul_(model.kernel.conj()), norm="forward")
        return total * (2 * model.sigma / model.slices / self.residual.shape[0])

    def directional(self, direction: torch.Tensor) -> torch.Tensor:
        """(p, qy, qx) derivative of the model's amplitudes along a direction (n, n) in V·Å."""
        model = self.model
        phase = torch.complex(torch.zeros_like(direction), direction * (model.sigma / model.slices))
        tangent = self.behind[0] * phase
        for index in range(1, model.slices):
            spectrum = torch.fft.fft2(tangent).mul_(model.kernel)
            tangent = torch.fft.ifft2(spectrum).mul_(self.transmission).add_(self.behind[index] * phase)
        half_change = (torch.fft.fft2(tangent).mul_(model.kernel) * self.exit_waves.conj()).real
        recorded = to_detector(half_change, model.geometry.detector_pixels, model.geometry.detector_binning)
        return recorded / self.amplitude

    def gauss_newton_step(self, direction: torch.Tensor) -> float:
        """Step along a direction that minimises the misfit with the amplitudes linearised: -<r, Jd> / <Jd, Jd>."""
        change = self.directional(direction)
        curvature = float(change.square().sum())
        if curvature <= 0 or not math.isfinite(curvature):
            return 0.0
        return -float((self.residual * change).sum()) / curvature
