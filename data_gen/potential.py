"""Atoms to slices of projected potential, and to the target: separable Fourier sums, exact at any atom position.

For one element and slice the structure factor of N atoms on an n x n grid is a matrix product,
S(ky, kx) = Σ_j exp(-2πi ky y_j) exp(-2πi kx x_j), so it costs of the order of n² N multiplications and no
interpolation. Cosines and sines are kept apart: the products of both with both give S at +ky and at -ky, in half the
multiplications of the complex product. Each atom's whole projected potential goes into the slice that holds its centre
(infinite projection).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch

from data_gen.scattering import scattering_factor
from data_gen.specimen import Specimen
from stemdl.physics.constants import SCATTERING_FACTOR_TO_V_A2
from stemdl.physics.grid import Grid

_ATOMS_AT_ONCE = 4096
"""Bounds the memory of the cosines: specimens may hold millions of atoms."""


@lru_cache(maxsize=256)
def _form_factor(number: int, grid: Grid, parametrization: str) -> torch.Tensor:
    """(h, 1, h) float32, h = n // 2 + 1: projected-potential form factor over the area of the box in V·Å, k >= 0."""
    k = _half_frequencies(grid)
    factor = scattering_factor(number, k[:, None] ** 2 + k[None, :] ** 2, parametrization)
    return (factor * SCATTERING_FACTOR_TO_V_A2 / grid.box_angstrom**2).to(torch.float32)[:, None, :]


@lru_cache(maxsize=8)
def _half_frequencies(grid: Grid) -> torch.Tensor:
    """(h,) spatial frequencies >= 0 in 1/Å, float64."""
    return grid.frequencies()[: grid.pixels // 2 + 1].abs()


def _cos_sin(coordinates_angstrom: torch.Tensor, grid: Grid) -> torch.Tensor:
    """(N, 2 h) float32 cos(2π k r) and sin(2π k r), the angle reduced in float64.

    The Nyquist frequency of an even grid stands for +k and -k at once; only the even part, the cosine, exists on it.
    """
    turns = torch.outer(coordinates_angstrom, _half_frequencies(grid))
    angle = turns.sub_(turns.round()).mul_(2 * math.pi).to(torch.float32)
    both = torch.cat([angle.cos(), angle.sin_()], dim=1)
    if grid.pixels % 2 == 0:
        both[:, -1] = 0
    return both


def _products(
    index: torch.Tensor, count: int, numbers: torch.Tensor, positions: torch.Tensor, grid: Grid, parametrization: str
) -> torch.Tensor:
    """(s, 2, h, 2, h) float32 in V·Å: Σ_j f_j (cos, sin)(2π ky y_j) (cos, sin)(2π kx x_j) of the atoms of each slice.

    index: (N,) slice of each atom, below `count`.
    """
    half = grid.pixels // 2 + 1
    total = torch.zeros(count, 2, half, 2, half)
    key = index * 256 + numbers
    order = key.argsort(stable=True)
    for chosen in torch.split(order, _ATOMS_AT_ONCE):
        rows, columns = _cos_sin(positions[chosen, 1], grid).mT, _cos_sin(positions[chosen, 0], grid)
        groups, sizes = torch.unique_consecutive(key[chosen], return_counts=True)
        start = 0
        for group, size in zip(groups.tolist(), sizes.tolist(), strict=True):
            product = torch.mm(rows[:, start : start + size], columns[start : start + size])
            factor = _form_factor(group % 256, grid, parametrization)
            total[group // 256].addcmul_(product.view(2, half, 2, half), factor)
            start += size
    return total


def _spectrum(products: torch.Tensor, grid: Grid) -> torch.Tensor:
    """(..., n, h) complex64 Fourier transform for `irfft2`, from `_products` (..., 2, h, 2, h)."""
    cos_cos, cos_sin = products[..., 0, :, 0, :], products[..., 0, :, 1, :]
    sin_cos, sin_sin = products[..., 1, :, 0, :], products[..., 1, :, 1, :]
    upper = torch.complex(cos_cos - sin_sin, -(sin_cos + cos_sin))
    lower = torch.complex(cos_cos + sin_sin, sin_cos - cos_sin)  # at -ky
    return torch.cat([upper, lower[..., 1 : (grid.pixels + 1) // 2, :].flip(-2)], dim=-2)


def _to_real(spectrum: torch.Tensor, grid: Grid) -> torch.Tensor:
    potential: torch.Tensor = torch.fft.irfft2(spectrum, s=(grid.pixels, grid.pixels), norm="forward")
    return potential


def slice_count(thickness_angstrom: float, slice_angstrom: float) -> int:
    """Number of slices of about `slice_angstrom` that make up the thickness, at least one."""
    return max(1, round(thickness_angstrom / slice_angstrom))


def potential_slices(
    specimen: Specimen, grid: Grid, slice_angstrom: float, parametrization: str
) -> tuple[torch.Tensor, float]:
    """Slices of projected potential of a specimen.

    Returns (s, n, n) float32 in V·Å, axes (slice, y, x), and the exact thickness of one slice in Å: all slices are
    equally thick and together as thick as the specimen.
    """
    thickness = specimen.box_angstrom[2]
    count = slice_count(thickness, slice_angstrom)
    numbers, positions = _atoms(specimen)
    index = (positions[:, 2] * (count / thickness)).floor().clamp(0, count - 1).to(torch.int64)
    products = _products(index, count, numbers, positions, grid, parametrization)
    return _to_real(_spectrum(products, grid), grid), thickness / count


def projected_target(
    specimen: Specimen,
    *,
    field_angstrom: tuple[float, float],
    pixel_angstrom: float,
    blur_sigma_angstrom: float,
    parametrization: str,
) -> torch.Tensor:
    """The projected potential at a stated resolution over the field in the middle of the box.

    Returns (y, x) float32 in V·Å: the Fourier series of the specimen's potential, blurred with a Gaussian of
    `blur_sigma_angstrom`, averaged over the area of each pixel (both exact, as factors of the series). No simulation
    grid enters.
    """
    box = specimen.box_angstrom[0]
    shape = [round(extent / pixel_angstrom) for extent in field_angstrom]
    step = _oversampling(pixel_angstrom, blur_sigma_angstrom)
    grid = Grid.from_pixel(box, pixel_angstrom / step)
    numbers, positions = _atoms(specimen)
    # The field's first pixel need not fall on the grid: move the middle of that pixel to the origin before sampling.
    moved = positions.clone()
    moved[:, 0] -= (box - field_angstrom[1]) / 2 + pixel_angstrom / 2
    moved[:, 1] -= (box - field_angstrom[0]) / 2 + pixel_angstrom / 2
    one_slice = torch.zeros_like(numbers)
    spectrum = _spectrum(_products(one_slice, 1, numbers, moved, grid, parametrization)[0], grid)
    k = grid.frequencies()
    seen = torch.exp(-2 * (math.pi * blur_sigma_angstrom * k) ** 2) * torch.sinc(k * pixel_angstrom)
    spectrum *= torch.outer(seen, seen[: grid.pixels // 2 + 1]).to(torch.float32)
    return _to_real(spectrum, grid)[: shape[0] * step : step, : shape[1] * step : step].contiguous()


def _atoms(specimen: Specimen) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.from_numpy(np.ascontiguousarray(specimen.numbers))
    return numbers, torch.from_numpy(np.ascontiguousarray(specimen.positions_angstrom))


def _oversampling(pixel_angstrom: float, blur_sigma_angstrom: float) -> int:
    """Points per pixel so that what the blur leaves (2 % at the Nyquist frequency or less) is sampled."""
    finest = max(blur_sigma_angstrom, 0.1) * 1.1
    return max(2, math.ceil(pixel_angstrom / finest))
