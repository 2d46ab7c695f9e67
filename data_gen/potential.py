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
_SLAB_BYTES = (2**22, 2**28)
"""Slices are made in slabs of so many bytes: on a CPU what its cache holds, elsewhere what keeps it busy."""
_EXACT = 8
"""Cosines are computed one by one up to this frequency index and at its doubles; products of these make the others."""


@lru_cache(maxsize=256)
def _form_factor(number: int, grid: Grid, parametrization: str, device: torch.device) -> torch.Tensor:
    """(h, 1, h) float32, h = n // 2 + 1: projected-potential form factor over the area of the box in V·Å, k >= 0."""
    k = grid.frequencies()[: grid.pixels // 2 + 1].abs()
    factor = scattering_factor(number, k[:, None] ** 2 + k[None, :] ** 2, parametrization)
    return (factor * SCATTERING_FACTOR_TO_V_A2 / grid.box_angstrom**2).to(device, torch.float32)[:, None, :]


def _cos_sin(coordinates_angstrom: torch.Tensor, grid: Grid) -> torch.Tensor:
    """(2 h, N) float32 cos(2π k r), then sin(2π k r).

    The angle of a few frequencies is reduced in float64; e^{iα} e^{iβ} = e^{i(α + β)} gives the frequencies between,
    each with as many roundings as it is doublings away.
    The Nyquist frequency of an even grid stands for +k and -k at once; only the even part, the cosine, exists on it.
    """
    last = grid.pixels // 2
    first = min(_EXACT, last)
    doubles = [first * 2**power for power in range(1, last.bit_length()) if first * 2**power <= last]
    exact = torch.tensor([*range(first + 1), *doubles], device=coordinates_angstrom.device)
    turns = torch.outer(exact, coordinates_angstrom / grid.box_angstrom)
    angle = turns.sub_(turns.round()).mul_(2 * math.pi).to(torch.float32)
    both = angle.new_empty(2, last + 1, len(coordinates_angstrom))
    both[0, exact], both[1, exact] = angle.cos(), angle.sin_()
    for done in (first, *doubles):
        count = min(done - 1, last - done)
        (cos, sin), (cos_step, sin_step) = both[:, 1 : count + 1], both[:, done]
        between = slice(done + 1, done + count + 1)
        torch.mul(cos, cos_step, out=both[0, between]).addcmul_(sin, sin_step, value=-1)
        torch.mul(sin, cos_step, out=both[1, between]).addcmul_(cos, sin_step)
    if grid.pixels % 2 == 0:
        both[1, last] = 0
    return both.view(2 * (last + 1), -1)


def _products(key: torch.Tensor, count: int, positions: torch.Tensor, grid: Grid, parametrization: str) -> torch.Tensor:
    """(s, 2, h, 2, h) float32 in V·Å: Σ_j f_j (cos, sin)(2π ky y_j) (cos, sin)(2π kx x_j) of the atoms of each slice.

    key: (N,) ascending, 256 times the slice (below `count`) plus the atomic number of each atom.
    """
    half = grid.pixels // 2 + 1
    total = torch.zeros(count, 2, half, 2, half, device=positions.device)
    for keys, some in zip(torch.split(key, _ATOMS_AT_ONCE), torch.split(positions, _ATOMS_AT_ONCE), strict=True):
        rows, columns = _cos_sin(some[:, 1], grid), _cos_sin(some[:, 0], grid).mT
        groups, sizes = torch.unique_consecutive(keys, return_counts=True)
        start = 0
        for group, size in zip(groups.tolist(), sizes.tolist(), strict=True):
            product = torch.mm(rows[:, start : start + size], columns[start : start + size])
            factor = _form_factor(group % 256, grid, parametrization, positions.device)
            total[group // 256].addcmul_(product.view(2, half, 2, half), factor)
            start += size
    return total


def _spectrum(products: torch.Tensor, grid: Grid) -> torch.Tensor:
    """(..., n, h) complex64 Fourier transform for `irfft2`, from `_products` (..., 2, h, 2, h)."""
    half, below = grid.pixels // 2 + 1, slice(1, (grid.pixels + 1) // 2)
    cos_cos, cos_sin = products[..., 0, :, 0, :], products[..., 0, :, 1, :]
    sin_cos, sin_sin = products[..., 1, :, 0, :], products[..., 1, :, 1, :]
    parts = products.new_empty(*products.shape[:-4], grid.pixels, half, 2)
    real, imaginary = parts[..., 0], parts[..., 1]
    torch.sub(cos_cos, sin_sin, out=real[..., :half, :])
    torch.add(sin_cos, cos_sin, out=imaginary[..., :half, :]).neg_()
    real[..., half:, :] = (cos_cos + sin_sin)[..., below, :].flip(-2)  # the same frequencies, met again at -ky
    imaginary[..., half:, :] = (sin_cos - cos_sin)[..., below, :].flip(-2)
    return torch.view_as_complex(parts)


def _to_real(spectrum: torch.Tensor, grid: Grid) -> torch.Tensor:
    potential: torch.Tensor = torch.fft.irfft2(spectrum, s=(grid.pixels, grid.pixels), norm="forward")
    return potential


def slice_count(thickness_angstrom: float, slice_angstrom: float) -> int:
    """Number of slices of about `slice_angstrom` that make up the thickness, at least one."""
    return max(1, round(thickness_angstrom / slice_angstrom))


def potential_slices(
    specimen: Specimen,
    grid: Grid,
    slice_angstrom: float,
    parametrization: str,
    device: torch.device | str = "cpu",
) -> tuple[torch.Tensor, float]:
    """Slices of projected potential of a specimen, computed on `device`.

    Returns (s, n, n) float32 in V·Å, axes (slice, y, x), and the exact thickness of one slice in Å: all slices are
    equally thick and together as thick as the specimen.
    """
    thickness = specimen.box_angstrom[2]
    count = slice_count(thickness, slice_angstrom)
    numbers, positions = _atoms(specimen)
    index = (positions[:, 2] * (count / thickness)).floor().clamp(0, count - 1).to(torch.int64)
    key, order = (256 * index + numbers).sort(stable=True)
    positions = positions[order].to(device)
    slab = max(1, _SLAB_BYTES[positions.device.type != "cpu"] // (4 * (grid.pixels + 2) ** 2))
    slices = torch.empty(count, grid.pixels, grid.pixels, device=device)
    for first in range(0, count, slab):
        last = min(first + slab, count)
        low, high = torch.searchsorted(key, torch.tensor([256 * first, 256 * last])).tolist()
        some = key[low:high] - 256 * first
        products = _products(some, last - first, positions[low:high], grid, parametrization)
        slices[first:last] = _to_real(_spectrum(products, grid), grid)
    return slices, thickness / count


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
    key, order = numbers.sort(stable=True)
    spectrum = _spectrum(_products(key, 1, moved[order], grid, parametrization)[0], grid)
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
