"""Training and validation fields, split by material, and the order in which they are seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from stemdl.config import Config, stage_hash
from stemdl.models.base import FieldInputs
from stemdl.models.predictor import scan_steps, turned
from stemdl.models.symmetry import apply_to_picture
from stemdl.seeds import Purpose
from stemdl.shards.detector import detector_model
from stemdl.shards.fields import Fields, load_fields
from stemdl.shards.source import reading_folder


@dataclass(frozen=True)
class Split:
    """Indices into the training set's fields."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]


class Batch(NamedTuple):
    """Indices into the fields, and for each of them the epoch in which it is seen, counted from 0."""

    indices: NDArray[np.int64]
    epochs: NDArray[np.int64]


def load_training_fields(config: Config, *, every_epoch: bool = False) -> Fields:
    """The training set through the configured detector.

    Its noise and its bad pixels are those of epoch 0 throughout, or with `every_epoch` drawn anew in each (see
    `Fields.recorded`). The rule: a network that is given physics pictures trains on epoch 0, since its pictures are
    made of these very patterns and are too dear to be made in every epoch; one that sees patterns alone has new noise
    in every epoch. Validation and reconstruction see epoch 0 in either case.

    Raises DetectorError for a detector that cannot be, and as `load_fields`.
    """
    return load_fields(
        reading_folder(config, "train"),
        stage_hash(config, "simulate"),
        detector=detector_model(config, "train"),
        every_epoch=every_epoch,
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


def misfit_squared(pictures: torch.Tensor, noise_misfit: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """(N,) squared misfit that physics alone leaves in each field, from its pictures (N, c, y, x): the last is the
    residual. Dense specimens, on which the physics gets stuck, stand out in it without any look at the truth.

    What noise and bad pixels add (`Fields.noise_misfit`) is taken off: fields of a low dose are not hard, there is
    nothing more in them. Where the physics has followed the noise, less than that may be left, which counts as none.
    """
    misfit = pictures[:, -1].to(torch.float64).mean(dim=(1, 2)).numpy()
    if noise_misfit is not None:
        misfit = np.maximum(misfit - noise_misfit, 0.0)
    return np.asarray(np.square(misfit))


def batches(
    indices: NDArray[np.int64],
    batch: int,
    steps: int,
    seed: int,
    stage: int,
    *,
    hardness: NDArray[np.float64] | None = None,
    hard_share: float = 0.0,
) -> Iterator[Batch]:
    """`steps` batches: epoch after epoch in a fresh seeded order, every field once per epoch.

    A batch may join the end of one epoch and the start of the next, so all batches are full. With `hardness` (one
    number for each index), a share of each batch is drawn by it besides, with replacement, and counts to the latest
    epoch of the batch.
    """
    total = 0.0 if hardness is None else float(hardness.sum())
    hard = min(batch - 1, round(hard_share * batch)) if total > 0 else 0  # some of each batch takes all in turn
    queue = np.empty(0, dtype=np.int64)
    epoch, taken = 0, 0
    for step in range(steps):
        while len(queue) < batch - hard:
            rng = np.random.default_rng(np.random.SeedSequence([seed, Purpose.BATCH_ORDER, stage, epoch]))
            queue = np.concatenate([queue, rng.permutation(indices)])
            epoch += 1
        chosen = queue[: batch - hard]
        queue = queue[batch - hard :]
        epochs = np.arange(taken, taken + len(chosen)) // len(indices)
        taken += len(chosen)
        if hard and hardness is not None:
            rng = np.random.default_rng(np.random.SeedSequence([seed, Purpose.HARD_FIELDS, stage, step]))
            chosen = np.concatenate([chosen, rng.choice(indices, hard, p=hardness / total)])
            epochs = np.concatenate([epochs, np.full(hard, epochs[-1])])
        yield Batch(chosen, epochs)


def augmentation(operations: Sequence[int], seed: int, stage: int, step: int) -> int:
    """The symmetry operation of a step: a pure function of seed, stage and step."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, Purpose.AUGMENTATION, stage, step]))
    return operations[int(rng.integers(len(operations)))]


def gather(
    fields: Fields,
    pictures: torch.Tensor | None,
    indices: NDArray[np.int64],
    operation: int,
    epochs: NDArray[np.int64] | None = None,
) -> tuple[FieldInputs, torch.Tensor]:
    """Inputs and true potentials (b, y, x) in V·Å of a batch under a symmetry operation.

    Each field is seen as in its epoch, in the first where none is given.
    """
    inputs = FieldInputs(
        torch.from_numpy(fields.recorded(indices, epochs).astype(np.float32)),
        None if pictures is None else pictures[torch.from_numpy(indices)],
        scan_steps(fields.parameters, indices),
    )
    return turned(inputs, operation), apply_to_picture(torch.from_numpy(fields.potential[indices]), operation)
