"""Beams, crystals and small tools that several tests of the physics share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from data_gen.specimen import Specimen
from stemdl.physics.grid import Grid
from stemdl.physics.probe import Optics

OPTICS = Optics(energy_kev=100.0, semiangle_mrad=20.0, defocus_angstrom=80.0)
FCC = ((0.0, 0.0, 0.0), (0.5, 0.5, 0.0), (0.5, 0.0, 0.5), (0.0, 0.5, 0.5))
DIAMOND = FCC + tuple((x + 0.25, y + 0.25, z + 0.25) for x, y, z in FCC)


def atoms(numbers: Sequence[int], positions: object, box: tuple[float, float, float]) -> Specimen:
    """A specimen from bare atoms."""
    return Specimen(
        crystal="bare atoms",
        numbers=np.array(numbers, dtype=np.int64),
        positions_angstrom=np.array(positions, dtype=np.float64).reshape(-1, 3),
        box_angstrom=box,
        zone_axis=(0, 0, 1),
        provenance={"displacement": None},
    )


def cubic(number: int, sites: Sequence[Sequence[float]], a: float, cells: tuple[int, int, int]) -> Specimen:
    """Whole cubic cells along [001], periodic in the box, an atom on the corner."""
    corners = np.stack(np.meshgrid(*(np.arange(count) for count in cells), indexing="ij"), axis=-1).reshape(-1, 1, 3)
    positions = ((corners + np.array(sites)) * a).reshape(-1, 3)
    return atoms([number] * len(positions), positions, (cells[0] * a, cells[1] * a, cells[2] * a))


def random_atoms(count: int, box: tuple[float, float, float], seed: int) -> Specimen:
    """Light and heavy atoms anywhere in the box."""
    rng = np.random.default_rng(seed)
    return atoms(rng.choice([1, 8, 22, 38], count).tolist(), rng.random((count, 3)) * np.array(box), box)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative L2 distance."""
    return float((found - expected).norm() / expected.norm())


def random_potential(grid: Grid, scale_v_angstrom: float, seed: int, slices: int | None = None) -> torch.Tensor:
    """Smooth random potential in V·Å, (n, n) or (slices, n, n)."""
    generator = torch.Generator().manual_seed(seed)
    shape = (grid.pixels, grid.pixels) if slices is None else (slices, grid.pixels, grid.pixels)
    noise = torch.randn(shape, generator=generator)
    smooth = torch.exp(-2 * (np.pi * 0.5) ** 2 * grid.k_squared()).to(torch.float32)  # blurred by 0.5 Å
    potential: torch.Tensor = torch.fft.ifft2(torch.fft.fft2(noise) * smooth).real
    return potential * (scale_v_angstrom / potential.std())


def plane_wave(grid: Grid, row: int = 0, column: int = 0) -> torch.Tensor:
    """(1, n, n) plane wave of unit total intensity with the given indices in reciprocal space."""
    spectrum = torch.zeros(1, grid.pixels, grid.pixels, dtype=torch.complex64)
    spectrum[0, row, column] = 1
    wave: torch.Tensor = torch.fft.ifft2(spectrum)
    return wave
