"""The physics half of `scanfield`: patterns of one field to pictures of its potential on the network's grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.nn import functional

from stemdl.config import Config
from stemdl.config.network import ScanField as ScanFieldSection
from stemdl.models.errors import NetworkConfigError
from stemdl.physics.grid import Grid
from stemdl.physics.iterate import conjugate_gradient
from stemdl.physics.misfit import ScanGeometry, ScanModel
from stemdl.physics.probe import Optics


def kept_steps(steps: int) -> tuple[int, ...]:
    """Steps whose potential becomes a channel: 1, 2, 4, ... and the last."""
    powers = [2**n for n in range(steps.bit_length()) if 2**n < steps]
    return (*powers, steps)


@dataclass(frozen=True)
class FieldPhysics:
    """What physics alone says of one field, or of many when stacked."""

    pictures: torch.Tensor
    """(..., c, y, x) pictures on the grid of the potential."""
    box: torch.Tensor
    """(..., n, n) last potential in V·Å on the whole box of the coarse model."""


class ScanPhysics:
    """Conjugate-gradient steps through the coarse multislice model, for fields of one configuration.

    Results are pictures (y, x) on the grid of the potential: the potentials after `kept_steps` in V·Å at the resolution
    of the target, the preconditioned gradient at the last one, and the residual of each position.

    Raises NetworkConfigError where the grids of box, detector, scan and target do not divide one another.
    """

    def __init__(self, config: Config) -> None:
        network = config.network
        assert isinstance(network, ScanFieldSection)
        self._section = network.back_projection
        microscope = config.microscope
        self._optics = Optics(
            energy_kev=microscope.energy_kev,
            semiangle_mrad=microscope.semiangle_mrad,
            defocus_angstrom=microscope.defocus_angstrom,
            c3_angstrom=microscope.c3_angstrom,
            astigmatism_angstrom=microscope.astigmatism_angstrom,
            astigmatism_azimuth_rad=microscope.astigmatism_azimuth_rad,
        )
        box = config.specimen.box_angstrom
        self.grid = _coarse_grid(box, self._section.pixel_angstrom)
        self._geometry = ScanGeometry(
            config.scan.positions,
            config.scan.step_angstrom,
            config.detector.pixels,
            _binning(config.detector.dk_per_angstrom, box),
        )
        self.field_pixels = field_pixels(config)
        pixel = config.target.pixel_angstrom
        self._to_field = tuple(
            _sampling_matrix(self.grid, pixels, pixel, config.target.blur_sigma_angstrom)
            for pixels in self.field_pixels
        )
        self._to_box = tuple(_interpolation_matrix(self.grid, pixels, pixel) for pixels in self.field_pixels)
        # A model holds the waves of all positions; making one anew costs little beside the steps it is used for.
        self._model = lru_cache(maxsize=8)(self._build_model)

    def _build_model(self, thickness_angstrom: float) -> ScanModel:
        return ScanModel(
            self._optics,
            self.grid,
            self._geometry,
            slices=self._section.slices,
            thickness_angstrom=thickness_angstrom,
        )

    def first(self, amplitude: torch.Tensor, thickness_angstrom: float) -> FieldPhysics:
        """Pictures of one field from a flat start. amplitude: (sy, sx, qy, qx) float32."""
        level = self._section.start_v_per_angstrom * thickness_angstrom
        flat = torch.full((self.grid.pixels, self.grid.pixels), level)
        return self._iterate(amplitude, thickness_angstrom, flat)

    def after(
        self, amplitude: torch.Tensor, thickness_angstrom: float, potential: torch.Tensor, box: torch.Tensor
    ) -> FieldPhysics:
        """Pictures that start from an answer (y, x) in V·Å; `box` (n, n) is the potential around the field.

        The answer itself comes first among them: the next stage corrects it.
        """
        physics = self._iterate(amplitude, thickness_angstrom, self._embed(potential, box))
        return FieldPhysics(torch.cat([potential.unsqueeze(0), physics.pictures]), physics.box)

    def _iterate(self, amplitude: torch.Tensor, thickness_angstrom: float, start: torch.Tensor) -> FieldPhysics:
        steps = self._section.steps
        iterates = conjugate_gradient(
            self._model(thickness_angstrom), amplitude.to(torch.float32), start, steps, kept_steps(steps)
        )
        maps = [self._sample(picture) for picture in (*iterates.potentials, iterates.gradient)]
        residual = functional.interpolate(iterates.residual[None, None], size=self.field_pixels, mode="nearest")
        return FieldPhysics(torch.stack([*maps, residual[0, 0]]), iterates.potentials[-1])

    def _sample(self, picture: torch.Tensor) -> torch.Tensor:
        """(n, n) on the box to (y, x) on the field: the Fourier series, blurred and averaged over each pixel."""
        rows, columns = self._to_field
        sampled: torch.Tensor = (rows @ torch.fft.fft2(picture, norm="forward") @ columns.mT).real
        return sampled

    def _embed(self, potential: torch.Tensor, around: torch.Tensor) -> torch.Tensor:
        """(n, n): the field's answer in its place, `around` elsewhere at a level that joins it."""
        rows, columns = self._to_box
        inside = torch.outer(rows.sum(dim=1), columns.sum(dim=1)) > 0.5
        placed = rows @ potential @ columns.mT
        level = placed[inside].mean() - around[inside].mean()
        return torch.where(inside, placed, around + level)


def field_pixels(config: Config) -> tuple[int, int]:
    """Pixels (y, x) of a field's potential. Raises NetworkConfigError where step and pixel do not divide."""
    step, pixel = config.scan.step_angstrom, config.target.pixel_angstrom
    factor = round(step / pixel)
    if factor < 1 or abs(factor * pixel - step) > 1e-6 * step:
        nearest = step / max(1, factor)
        raise NetworkConfigError(
            "target.pixel_angstrom",
            f"{pixel:.10g} Å",
            f"a whole fraction of scan.step_angstrom ({step:g} Å), such as {nearest:.16g}",
        )
    return config.scan.positions[0] * factor, config.scan.positions[1] * factor


def _coarse_grid(box_angstrom: float, pixel_angstrom: float) -> Grid:
    try:
        return Grid.from_pixel(box_angstrom, pixel_angstrom)
    except ValueError as error:
        nearest = box_angstrom / max(2, round(box_angstrom / pixel_angstrom))
        raise NetworkConfigError(
            "network.back_projection.pixel_angstrom",
            f"{pixel_angstrom:.10g} Å",
            f"a whole fraction of specimen.box_angstrom ({box_angstrom:g} Å), such as {nearest:.16g}",
        ) from error


def _binning(dk_per_angstrom: float, box_angstrom: float) -> int:
    steps = dk_per_angstrom * box_angstrom
    if round(steps) < 1 or abs(steps - round(steps)) > 1e-6 * steps:
        raise NetworkConfigError(
            "detector.dk_per_angstrom",
            f"{dk_per_angstrom:.10g} 1/Å",
            f"a whole multiple of 1/{box_angstrom:g} Å = {1 / box_angstrom:.10g} 1/Å, the reciprocal step of the box",
        )
    return round(steps)


def _centres(grid: Grid, pixels: int, pixel_angstrom: float) -> torch.Tensor:
    """(pixels,) centres in Å of the pixels of a field in the middle of the box."""
    return (torch.arange(pixels, dtype=torch.float64) - (pixels - 1) / 2) * pixel_angstrom + grid.box_angstrom / 2


def _sampling_matrix(grid: Grid, pixels: int, pixel_angstrom: float, blur_sigma_angstrom: float) -> torch.Tensor:
    """(pixels, n) complex64: Fourier coefficients to values blurred and averaged over each pixel of the field."""
    k = grid.frequencies()
    soften = torch.exp(-2 * (math.pi * blur_sigma_angstrom * k) ** 2) * torch.sinc(k * pixel_angstrom)
    angle = 2 * math.pi * torch.outer(_centres(grid, pixels, pixel_angstrom), k)
    return torch.polar(soften.expand_as(angle), angle).to(torch.complex64)


def _interpolation_matrix(grid: Grid, pixels: int, pixel_angstrom: float) -> torch.Tensor:
    """(n, pixels) float32 linear interpolation from the field to the box; rows outside the field are zero."""
    points = torch.arange(grid.pixels, dtype=torch.float64) * grid.pixel_angstrom
    place = (points - _centres(grid, pixels, pixel_angstrom)[0]) / pixel_angstrom
    inside = (place >= -0.5) & (place <= pixels - 0.5)
    place = place.clamp(0, pixels - 1)
    weights = (1 - (place[:, None] - torch.arange(pixels, dtype=torch.float64)).abs()).clamp(min=0)
    return (weights * inside[:, None]).to(torch.float32)
