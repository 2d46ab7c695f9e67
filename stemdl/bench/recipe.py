"""abTEM by its documentation's recipe beside our engine: how accurate, how fast, on one core and on all.

Patterns on our grid by the recipe are further from the converged ones than ours: abTEM spreads an atom between pixels
over its neighbours bilinearly, and counts on a finer grid to make up for it. Both speeds are given: on our grid, and on
the coarsest that makes the recipe as accurate as our engine is on ours.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from stemdl.bench.child import Child, Order, Task
from stemdl.bench.figures import Accuracy, AllCores

GRID_FACTORS = (1.0, 1.125, 1.25, 1.375, 1.5, 1.75, 2.0)
"""How many times finer than ours the recipe's grids are, or a little more: sizes slow to transform are left out."""
_LARGEST_REFERENCE = 512


def measure_accuracy(order: Order, pixels: int, specimens: int, folder: Path) -> Accuracy:
    """Distances from patterns on a grid four times finer (twice, where that is above 512 pixels)."""
    finer = 4.0 if 4 * pixels <= _LARGEST_REFERENCE else 2.0
    with Child(replace(order, engine="torch")) as torch_child, Child(replace(order, engine="recipe")) as recipe_child:
        reference = _patterns(torch_child, finer, specimens, folder)
        ours = _distance(_patterns(torch_child, 1.0, specimens, folder), reference)
        recipe = {
            factor: _distance(_patterns(recipe_child, factor, specimens, folder), reference)
            for factor in (_good_size(pixels * least) / pixels for least in GRID_FACTORS)
        }
    return Accuracy(round(finer * pixels), ours, recipe)


def measure_all_cores(order: Order, specimens: int, repeats: int, cores: int) -> AllCores:
    """Samples per second: ours with a process for each core, the recipe in one process that takes what it wants."""
    with ExitStack() as stack:
        ours = [stack.enter_context(Child(replace(order, engine="torch"))) for _ in range(cores)]
        recipe = stack.enter_context(Child(replace(order, engine="recipe", one_thread=False)))
        together, alone = [], []
        for turn in range(repeats + 1):
            seconds = _together(ours, specimens), _together([recipe], specimens)
            if turn:  # the first round loads and plans
                together.append(cores * specimens / seconds[0])
                alone.append(specimens / seconds[1])
    return AllCores(cores, median(together), median(alone))


def _together(children: Sequence[Child], specimens: int) -> float:
    start = time.perf_counter()
    for number in range(specimens):
        for child in children:
            child.ask(Task(number))
    for _ in range(specimens):
        for child in children:
            child.answer()
    return time.perf_counter() - start


def _good_size(least: float) -> int:
    """The next even number with no prime factor above 7, which abTEM's documentation recommends for its grids."""
    size = 2 * math.ceil(least / 2 - 1e-9)
    while _without_small_primes(size) > 1:
        size += 2
    return size


def _without_small_primes(number: int) -> int:
    for prime in (2, 3, 5, 7):
        while number % prime == 0:
            number //= prime
    return number


def _patterns(child: Child, grid_factor: float, specimens: int, folder: Path) -> list[NDArray[np.float32]]:
    file, found = folder / "patterns.npy", []
    for number in range(specimens):
        child.measure(Task(number, grid_factor, few=True, save=str(file)))
        found.append(np.load(file, allow_pickle=False))
    return found


def _distance(some: Sequence[NDArray[np.float32]], others: Sequence[NDArray[np.float32]]) -> float:
    return median(
        float(np.linalg.norm(one - other) / np.linalg.norm(other)) for one, other in zip(some, others, strict=True)
    )
