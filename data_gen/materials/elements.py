"""Chemical symbols, electronegativities and reduced formulas.

Kept as plain tables so that reading or cutting a structure does not import ASE (0.3-1 s in every process).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

SYMBOLS: tuple[str, ...] = (
    "",
    *"H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr".split(),
    *"Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm".split(),
    *"Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr".split(),
)
"""Symbol of each atomic number 1..103, the range of the published electron scattering factors."""

# Pauling scale (CRC Handbook), in the order of SYMBOLS; 0 where no value is quoted.
_ELECTRONEGATIVITY: tuple[float, ...] = (
    *(0.0, 2.20, 0.0, 0.98, 1.57, 2.04, 2.55, 3.04, 3.44, 3.98, 0.0, 0.93, 1.31, 1.61, 1.90, 2.19, 2.58, 3.16, 0.0),
    *(0.82, 1.00, 1.36, 1.54, 1.63, 1.66, 1.55, 1.83, 1.88, 1.91, 1.90, 1.65, 1.81, 2.01, 2.18, 2.55, 2.96, 3.00),
    *(0.82, 0.95, 1.22, 1.33, 1.60, 2.16, 1.90, 2.20, 2.28, 2.20, 1.93, 1.69, 1.78, 1.96, 2.05, 2.10, 2.66, 2.60),
    *(0.79, 0.89, 1.10, 1.12, 1.13, 1.14, 1.13, 1.17, 1.20, 1.20, 1.20, 1.22, 1.23, 1.24, 1.25, 1.10, 1.27),
    *(1.30, 1.50, 2.36, 1.90, 2.20, 2.20, 2.28, 2.54, 2.00, 1.62, 2.33, 2.02, 2.00, 2.20, 0.0),
    *(0.70, 0.90, 1.10, 1.30, 1.50, 1.38, 1.36, 1.28, 1.30, 1.30, 1.30, 1.30, 1.30, 1.30, 1.30, 1.30, 1.30),
)

_NUMBER = {symbol: number for number, symbol in enumerate(SYMBOLS) if symbol}
_INTEGER_TOLERANCE = 0.01
_LARGEST_MULTIPLIER = 100


def atomic_number(symbol: str) -> int:
    """Atomic number of a chemical symbol.

    Raises:
        KeyError: the symbol is none of H..Lr.
    """
    return _NUMBER[symbol]


def parse_formula(formula: str) -> dict[str, float]:
    """Amounts of a flat formula without brackets, in the order written: "SrTiO3" -> {"Sr": 1, "Ti": 1, "O": 3}.

    Raises:
        ValueError: the text is not a sequence of known symbols and numbers, or names an element twice.
    """
    amounts: dict[str, float] = {}
    matched = 0
    for match in re.finditer(r"([A-Z][a-z]?)(\d*\.?\d*)", formula):
        symbol = match.group(1)
        if symbol not in _NUMBER or symbol in amounts:
            raise ValueError(f"formula {formula!r}: {symbol!r} is not an element or stands there twice")
        amounts[symbol] = float(match.group(2) or 1)
        matched += len(match.group(0))
    if not amounts or matched != len(formula):
        raise ValueError(f"formula {formula!r} is not a sequence of element symbols and numbers")
    return amounts


def reduced_formula(composition: Mapping[int, float]) -> str:
    """Formula with the smallest whole numbers, least electronegative element first: {38: 2, 22: 2, 8: 6} -> "SrTiO3".

    Amounts that are no ratio of whole numbers up to 100 are rounded to the nearest such ratio, so that partial
    occupancies have a formula as well (40 % Ge, 40 % Sb on the site next to Te: "Ge2Sb2Te5").

    Args:
        composition: amount by atomic number, each amount > 0.
    """
    smallest = min(composition.values())
    ratios = {z: amount / smallest for z, amount in composition.items()}
    whole = _whole_numbers(ratios)
    divisor = math.gcd(*whole.values())
    ordered = sorted(whole, key=lambda z: (_ELECTRONEGATIVITY[z], z))
    return "".join(SYMBOLS[z] + (str(whole[z] // divisor) if whole[z] // divisor > 1 else "") for z in ordered)


def _whole_numbers(ratios: Mapping[int, float]) -> dict[int, int]:
    """Smallest whole numbers proportional to the ratios (all >= 1), or the nearest ones if there are none."""

    def misfit(multiplier: int) -> float:
        return max(abs(multiplier * ratio - round(multiplier * ratio)) for ratio in ratios.values())

    multipliers = range(1, _LARGEST_MULTIPLIER + 1)
    exact = (m for m in multipliers if misfit(m) < _INTEGER_TOLERANCE)
    best = next(exact, None) or min(multipliers, key=misfit)
    return {z: max(1, round(best * ratio)) for z, ratio in ratios.items()}
