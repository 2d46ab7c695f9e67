"""One stage of the network: steps of AdamW on augmented batches, the averaged weights validated on other materials."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from stemdl.errors import UserError
from stemdl.models.base import FieldInputs, PotentialNetwork
from stemdl.models.predictor import Predictor
from stemdl.models.scan_physics import FieldPhysics
from stemdl.models.symmetry import IDENTITY, symmetries
from stemdl.progress import Progress
from stemdl.shards.fields import Fields
from stemdl.train.average import WeightAverage
from stemdl.train.data import Split, augmentation, batches, gather
from stemdl.train.loss import potential_loss
from stemdl.train.schedule import learning_rate


class TrainingDiverged(UserError):
    """The loss is no number any more: names the stage, the step and the fields of the batch."""


@dataclass
class StageHistory:
    """How one stage went; lists of equal length, steps counted from 1."""

    stage: int
    steps: list[int] = field(default_factory=list)
    train_loss: list[float] = field(default_factory=list)
    lr: list[float] = field(default_factory=list)
    validation_steps: list[int] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    validation_r: list[float] = field(default_factory=list)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The same as one mapping for each line of a log."""
        for step, loss, lr in zip(self.steps, self.train_loss, self.lr, strict=True):
            yield {"event": "train", "stage": self.stage + 1, "step": step, "loss": loss, "lr": lr}
        for step, loss, r in zip(self.validation_steps, self.validation_loss, self.validation_r, strict=True):
            yield {"event": "validate", "stage": self.stage + 1, "step": step, "loss": loss, "median_pearson_r": r}


def train_stage(
    predictor: Predictor, fields: Fields, physics: FieldPhysics | None, split: Split, stage: int, progress: Progress
) -> StageHistory:
    """Train one stage; the network ends with its averaged weights.

    Raises TrainingDiverged where the loss is NaN or infinite.
    """
    config = predictor.config
    section = config.train
    network = predictor.network
    module = network.stage_module(stage)
    pictures = None if physics is None else physics.pictures
    operations = symmetries(config) if section.augment and _square(fields) else (IDENTITY,)
    optimizer = torch.optim.AdamW(module.parameters(), lr=section.lr, weight_decay=section.weight_decay)
    average = WeightAverage(module, section.ema_decay)
    history = StageHistory(stage)
    recent: list[torch.Tensor] = []
    progress.start(f"train stage {stage + 1}", section.steps, "steps")
    started = time.monotonic()
    order = batches(split.train, section.batch, section.steps, config.run.seed, stage)
    for step, indices in enumerate(order):
        network.train()
        operation = augmentation(operations, config.run.seed, stage, step)
        inputs, truth = gather(fields, pictures, indices, operation)
        lr = learning_rate(step, section.steps, section.lr, section.warmup_steps)
        recent.append(_step(predictor, optimizer, inputs, truth, stage, lr))
        average.update()
        done = step + 1
        if done % section.log_every == 0 or done == section.steps:
            loss = float(torch.stack(recent).mean())
            recent.clear()
            if not math.isfinite(loss):
                names = ", ".join(str(fields.items[i]) for i in indices)
                raise TrainingDiverged(
                    f"training stage {stage + 1}: the loss is {loss} by step {done} (last batch: items {names}); "
                    f"lower train.lr (now {section.lr:g}) or raise train.warmup_steps ({section.warmup_steps})"
                )
            history.steps.append(done)
            history.train_loss.append(loss)
            history.lr.append(lr)
            rate = done * section.batch / (time.monotonic() - started)
            progress.advance(done, loss=loss, fields_per_s=rate)
        if done % section.validate_every == 0 or done == section.steps:
            with average.applied():
                loss, r = _validate(predictor, fields, physics, split, stage)
            history.validation_steps.append(done)
            history.validation_loss.append(loss)
            history.validation_r.append(r)
            progress.note(f"stage {stage + 1}, step {done}: validation loss {loss:.4f}, median r {r:.4f}")
    average.copy_to_module()
    progress.finish()
    return history


def _square(fields: Fields) -> bool:
    return fields.potential.shape[1] == fields.potential.shape[2]


def _step(
    predictor: Predictor,
    optimizer: torch.optim.Optimizer,
    inputs: FieldInputs,
    truth: torch.Tensor,
    stage: int,
    lr: float,
) -> torch.Tensor:
    """One optimisation step; returns the loss without waiting for it."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    loss = _loss(predictor, predictor.network, inputs, truth, stage)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _loss(
    predictor: Predictor, network: PotentialNetwork, inputs: FieldInputs, truth: torch.Tensor, stage: int
) -> torch.Tensor:
    section = predictor.config.train
    return potential_loss(
        network(inputs, stage),
        truth,
        network.scale_v_angstrom,
        huber_beta=section.huber_beta,
        relative_weight=section.relative_weight,
    )


@torch.no_grad()
def _validate(
    predictor: Predictor, fields: Fields, physics: FieldPhysics | None, split: Split, stage: int
) -> tuple[float, float]:
    """Mean loss and median Pearson r on the validation materials, with the module's present weights."""
    network = predictor.network
    network.eval()
    pictures = None if physics is None else physics.pictures
    losses, correlations = [], []
    for start in range(0, len(split.validation), predictor.config.reconstruct.batch):
        indices = split.validation[start : start + predictor.config.reconstruct.batch]
        inputs, truth = gather(fields, pictures, indices, IDENTITY)
        losses.append(float(_loss(predictor, network, inputs, truth, stage)) * len(indices))
        correlations += _pearson(network.potential(inputs, stage), truth)
    return sum(losses) / len(split.validation), float(np.median(correlations))


def _pearson(prediction: torch.Tensor, truth: torch.Tensor) -> list[float]:
    """Pearson's r of each field; 0 for a constant prediction."""
    a = (prediction - prediction.mean(dim=(1, 2), keepdim=True)).flatten(1)
    b = (truth - truth.mean(dim=(1, 2), keepdim=True)).flatten(1)
    norm = a.norm(dim=1) * b.norm(dim=1)
    return [float(x) for x in torch.where(norm > 0, (a * b).sum(dim=1) / norm.clamp_min(1e-30), 0.0)]
