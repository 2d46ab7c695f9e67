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


def misfit_squared(pictures: torch.Tensor) -> NDArray[np.float64]:
    """(N,) squared misfit that physics alone leaves in each field, from its pictures (N, c, y, x): the last is the
    residual. Dense specimens, on which the physics gets stuck, stand out in it without any look at the truth."""
    misfit = pictures[:, -1].to(torch.float64).mean(dim=(1, 2))
    return np.asarray(misfit.square().numpy())


def batches(
    indices: NDArray[np.int64],
    batch: int,
    steps: int,
    seed: int,
    stage: int,
    *,
    hardness: NDArray[np.float64] | None = None,
    hard_share: float = 0.0,
) -> Iterator[NDArray[np.int64]]:
    """`steps` batches of indices: epoch after epoch in a fresh seeded order, every field once per epoch.

    A batch may join the end of one epoch and the start of the next, so all batches are full. With `hardness` (one
    number for each index), a share of each batch is drawn by it besides, with replacement.
    """
    total = 0.0 if hardness is None else float(hardness.sum())
    hard = min(batch - 1, round(hard_share * batch)) if total > 0 else 0  # some of each batch takes all in turn
    queue = np.empty(0, dtype=np.int64)
    epoch = 0
    for step in range(steps):
        while len(queue) < batch - hard:
            rng = np.random.default_rng(np.random.SeedSequence([seed, Purpose.BATCH_ORDER, stage, epoch]))
            queue = np.concatenate([queue, rng.permutation(indices)])
            epoch += 1
        chosen = queue[: batch - hard]
        queue = queue[batch - hard :]
        if hard and hardness is not None:
            rng = np.random.default_rng(np.random.SeedSequence([seed, Purpose.HARD_FIELDS, stage, step]))
            chosen = np.concatenate([chosen, rng.choice(indices, hard, p=hardness / total)])
        yield chosen


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
