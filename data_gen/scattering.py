"""Electron scattering factors from abTEM's tables, read without importing abTEM (which costs seconds per process)."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from data_gen.materials.elements import SYMBOLS
from stemdl.errors import UserError

PARAMETRIZATIONS = ("kirkland", "lobato")


class UnknownElement(UserError, ValueError):
    """An element that the table of scattering factors does not hold."""


@cache
def _table(parametrization: str) -> dict[str, NDArray[np.float64]]:
    if parametrization not in PARAMETRIZATIONS:
        raise ValueError(f"parametrization {parametrization!r}; known are {', '.join(PARAMETRIZATIONS)}")
    spec = importlib.util.find_spec("abtem")  # finds the package without executing it
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("abTEM is not installed; its package data holds the scattering factors")
    file = Path(spec.submodule_search_locations[0]) / "parametrizations" / "data" / f"{parametrization}.json"
    with file.open(encoding="utf-8") as stream:
        return {symbol: np.array(rows, dtype=np.float64) for symbol, rows in json.load(stream).items()}


def scattering_factor(number: int, k_squared: torch.Tensor, parametrization: str) -> torch.Tensor:
    """f_e(k²) in Å of the element with atomic number `number`; k_squared in 1/Å² (without 2π), any shape, float64.

    Kirkland: three Lorentzians and three Gaussians (Advanced Computing in Electron Microscopy, eq. C.15).
    Lobato: five terms (Lobato and Van Dyck, Acta Cryst. A 70, 636, 2014, eq. 16).
    Raises UnknownElement where the table does not hold the element.
    """
    table = _table(parametrization)
    symbol = SYMBOLS[number] if 0 < number < len(SYMBOLS) else f"Z={number}"
    if symbol not in table:
        raise UnknownElement(f"element {symbol} is not in the {parametrization} table ({len(table)} elements)")
    rows = torch.from_numpy(table[symbol])
    k2 = k_squared.to(torch.float64)[..., None]
    terms: torch.Tensor
    if parametrization == "kirkland":
        a, b, c, d = rows
        terms = a / (b + k2) + c * torch.exp(-d * k2)
    else:
        a, b = rows
        terms = a * (2.0 + b * k2) / (1.0 + b * k2) ** 2
    return terms.sum(dim=-1)
