"""Training and validation fields, split by material, and the order in which they are seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from stemdl.config import Config, stage_hash
from stemdl.models.base import FieldInputs
from stemdl.models.symmetry import apply_to_patterns, apply_to_picture
from stemdl.seeds import Purpose
from stemdl.shards.fields import Fields, load_fields


@dataclass(frozen=True)
class Split:
    """Indices into the training set's fields."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]


def load_training_fields(config: Config) -> Fields:
    """The training set, with the configured dose applied."""
    return load_fields(
        config.run.folder / "shards" / "train",
        stage_hash(config, "simulate"),
        dose_e_per_a2=config.detector.dose_e_per_a2,
        scan_step_angstrom=config.scan.step_angstrom,
        noise_seed=(config.run.seed, Purpose.TRAIN_DOSE),
    )


def split_fields(formulas: Sequence[str], validation_fraction: float, seed: int) -> Split:
    """Split by material: all fields of a formula are on the same side; at least one formula on each.

    With one formula alone, its fields serve as both: the validation curve then shows no more than the fit.
    """
    names = sorted(set(formulas))
    if len(names) == 1:
        everything = np.arange(len(formulas))
        return Split(everything, everything)
    rng = np.random.default_rng(np.random.SeedSequence([seed, Purpose.VALIDATION_SPLIT]))
    count = min(len(names) - 1, max(1, round(validation_fraction * len(names))))
    kept_aside = {names[i] for i in rng.permutation(len(names))[:count]}
    mask = np.array([formula in kept_aside for formula in formulas])
    return Split(np.flatnonzero(~mask), np.flatnonzero(mask))


def batches(indices: NDArray[np.int64], batch: int, steps: int, seed: int, stage: int) -> Iterator[NDArray[np.int64]]:
    """`steps` batches of indices: epoch after epoch in a fresh seeded order, every field once per epoch.

    A batch may join the end of one epoch and the start of the next, so all batches are full.
    """
    queue = np.empty(0, dtype=np.int64)
    epoch = 0
    for _ in range(steps):
        while len(queue) < batch:
            rng = np.random.default_rng(np.random.SeedSequence([seed, Purpose.BATCH_ORDER, stage, epoch]))
            queue = np.concatenate([queue, rng.permutation(indices)])
            epoch += 1
        yield queue[:batch]
        queue = queue[batch:]


def augmentation(operations: Sequence[int], seed: int, stage: int, step: int) -> int:
    """The symmetry operation of a step: a pure function of seed, stage and step."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, Purpose.AUGMENTATION, stage, step]))
    return operations[int(rng.integers(len(operations)))]


def gather(
    fields: Fields, pictures: torch.Tensor | None, indices: NDArray[np.int64], operation: int
) -> tuple[FieldInputs, torch.Tensor]:
    """Inputs and true potentials (b, y, x) in V·Å of a batch under a symmetry operation."""
    amplitude = torch.from_numpy(fields.amplitude[indices].astype(np.float32))
    truth = torch.from_numpy(fields.potential[indices])
    turned = None if pictures is None else apply_to_picture(pictures[torch.from_numpy(indices)], operation)
    return FieldInputs(apply_to_patterns(amplitude, operation), turned), apply_to_picture(truth, operation)
