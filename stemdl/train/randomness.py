"""torch's own generator, which initial weights and dropout draw from, as a pure function of integers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def torch_seed(*key: int) -> Iterator[None]:
    """torch's generator of the processor seeded from SeedSequence(key) inside the block, and as it was behind it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1)[0]))
        yield
