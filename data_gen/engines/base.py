"""What every engine takes and gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from data_gen.specimen import Specimen
from stemdl.physics.grid import Grid
from stemdl.physics.probe import Optics, raster


@dataclass(frozen=True)
class ImagingSetup:
    """Everything but the specimen: optics, grid, scan, detector, slices."""

    optics: Optics
    grid: Grid
    scan_shape: tuple[int, int]
    scan_step_angstrom: float
    detector_pixels: tuple[int, int]
    detector_binning: int
    """Points of the box's reciprocal grid per detector pixel."""
    slice_angstrom: float
    parametrization: str
    probe_chunk: int = 16
    """Waves that are held at once: bounds the memory."""
    algorithm: str = "auto"
    """"multislice", "prism", or "auto": what the cost model says is quicker and exact. The reference engine does
    multislice whatever this says."""
    prism_interpolation: int = 1
    """PRISM with every f-th plane wave alone, whose probes see 1/f of the box; 1 is exact."""
    scan_offsets_angstrom: tuple[tuple[float, float], ...] = ()
    """What is added (y, x) to the raster at each of the sy * sx positions, in Å; empty for none."""

    @property
    def probes(self) -> int:
        """Number of probe positions."""
        return self.scan_shape[0] * self.scan_shape[1]

    def positions(self) -> torch.Tensor:
        """(sy * sx, 2) probe positions (y, x) in Å, float64.

        Raises ValueError where there are offsets, but not one for each position.
        """
        positions = raster(self.scan_shape, self.scan_step_angstrom, self.grid.box_angstrom)
        if not self.scan_offsets_angstrom:
            return positions
        offsets = torch.tensor(self.scan_offsets_angstrom, dtype=torch.float64)
        if offsets.shape != positions.shape:
            raise ValueError(
                f"scan_offsets_angstrom: shape {tuple(offsets.shape)}, but the scan has {self.probes} positions (y, x)"
            )
        return positions + offsets


class Engine(Protocol):
    """An engine. Potentials in V·Å with axes (slice, y, x); patterns are fractions of the incident beam, float32."""

    name: str

    def version(self) -> str:
        """Name and version of the program, for the provenance of a sample."""
        ...

    def slices(self, specimen: Specimen, setup: ImagingSetup) -> tuple[torch.Tensor, float]:
        """(s, n, n) slices in V·Å and the thickness of one slice in Å."""
        ...

    def patterns(self, slices: torch.Tensor, slice_thickness_angstrom: float, setup: ImagingSetup) -> torch.Tensor:
        """(sy, sx, qy, qx) patterns made from slices."""
        ...


def engine_by_name(name: str) -> Engine:
    """The engine called "torch" or "abtem"; abTEM is imported only when it is asked for."""
    if name == "torch":
        from data_gen.engines.torch_engine import TorchEngine

        return TorchEngine()
    if name == "abtem":
        from data_gen.engines.abtem_engine import AbtemEngine

        return AbtemEngine()
    raise ValueError(f"engine {name!r}; known are 'torch' and 'abtem'")
