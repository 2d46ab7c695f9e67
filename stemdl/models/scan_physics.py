"""The physics half of `scanfield`: patterns of one field to pictures of its potential on the network's grid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

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


@dataclass(frozen=True)
class Conditions:
    """What a field was recorded with: all that tells its coarse model from that of another field."""

    optics: Optics
    scan_step_angstrom: float
    thickness_angstrom: float


OPTICS_NAMES = tuple(Optics.__dataclass_fields__)
"""Parameters of a sample that are its optics, under the same names."""
SCAN_STEP = "scan_step_angstrom"
"""The parameter of a sample that is the step of its scan."""

_MOST_MODELS = 8
_MODELS_BYTES = 2**28


class ScanPhysics:
    """Conjugate-gradient steps through the coarse multislice model, for fields of one configuration.

    Results are pictures (y, x) on the grid of the potential: the potentials after `kept_steps` in V·Å at the resolution
    of the target, the preconditioned gradient at the last one, and the residual of each position.

    Optics and scan step are those of the configuration, or those among the `parameters` given with a field, by the
    names that shards record them under (energy_kev, scan_step_angstrom, ...). The field stays that of the
    configuration whatever the step: a scan of smaller steps does not reach its border, where pictures keep their start.
    A finite source and the shifts of scan noise are not modelled.

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
        self._pixel_angstrom = pixel = config.target.pixel_angstrom
        self._to_field = tuple(
            _sampling_matrix(self.grid, pixels, pixel, config.target.blur_sigma_angstrom)
            for pixels in self.field_pixels
        )
        self._to_box = tuple(_interpolation_matrix(self.grid, pixels, pixel) for pixels in self.field_pixels)
        # A model holds the waves of all positions; making one anew costs little beside the steps it is used for, so
        # few are kept: of fields that are all recorded differently, none is ever asked for again.
        waves_bytes = math.prod(config.scan.positions) * self.grid.pixels**2 * torch.complex64.itemsize
        self._model = lru_cache(maxsize=max(1, min(_MOST_MODELS, _MODELS_BYTES // waves_bytes)))(self._build_model)

    def _build_model(self, conditions: Conditions) -> ScanModel:
        return ScanModel(
            conditions.optics,
            self.grid,
            replace(self._geometry, scan_step_angstrom=conditions.scan_step_angstrom),
            slices=self._section.slices,
            thickness_angstrom=conditions.thickness_angstrom,
        )

    def conditions(self, thickness_angstrom: float, parameters: Mapping[str, float] | None = None) -> Conditions:
        """What a field was recorded with: the configuration's optics and step but for what `parameters` say."""
        given = {} if parameters is None else parameters
        return Conditions(
            replace(self._optics, **{name: float(given[name]) for name in OPTICS_NAMES if name in given}),
            float(given.get(SCAN_STEP, self._geometry.scan_step_angstrom)),
            thickness_angstrom,
        )

    def first(
        self, amplitude: torch.Tensor, thickness_angstrom: float, parameters: Mapping[str, float] | None = None
    ) -> FieldPhysics:
        """Pictures of one field from a flat start. amplitude: (sy, sx, qy, qx) float32."""
        level = self._section.start_v_per_angstrom * thickness_angstrom
        flat = torch.full((self.grid.pixels, self.grid.pixels), level)
        return self._iterate(amplitude, self.conditions(thickness_angstrom, parameters), flat)

    def after(
        self,
        amplitude: torch.Tensor,
        thickness_angstrom: float,
        potential: torch.Tensor,
        box: torch.Tensor,
        parameters: Mapping[str, float] | None = None,
    ) -> FieldPhysics:
        """Pictures that start from an answer (y, x) in V·Å; `box` (n, n) is the potential around the field.

        The answer itself comes first among them: the next stage corrects it.
        """
        conditions = self.conditions(thickness_angstrom, parameters)
        physics = self._iterate(amplitude, conditions, self._embed(potential, box))
        return FieldPhysics(torch.cat([potential.unsqueeze(0), physics.pictures]), physics.box)

    def _iterate(self, amplitude: torch.Tensor, conditions: Conditions, start: torch.Tensor) -> FieldPhysics:
        steps = self._section.steps
        iterates = conjugate_gradient(
            self._model(conditions), amplitude.to(torch.float32), start, steps, kept_steps(steps)
        )
        maps = [self._sample(picture) for picture in (*iterates.potentials, iterates.gradient)]
        maps.append(self._on_field(iterates.residual, conditions.scan_step_angstrom))
        return FieldPhysics(torch.stack(maps), iterates.potentials[-1])

    def _on_field(self, of_positions: torch.Tensor, scan_step_angstrom: float) -> torch.Tensor:
        """(sy, sx), one value for each position, to (y, x): that of the position each pixel of the field is next to."""
        for axis, pixels in enumerate(self.field_pixels):
            count = of_positions.shape[axis]
            from_middle = (torch.arange(pixels, dtype=torch.float64) - (pixels - 1) / 2) * self._pixel_angstrom
            place = (from_middle / scan_step_angstrom + count / 2).floor().long().clamp(0, count - 1)
            of_positions = of_positions.index_select(axis, place)
        return of_positions

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
