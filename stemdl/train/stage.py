"""One stage of the network: steps of AdamW on augmented batches, the averaged weights validated on other materials."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stemdl.errors import UserError
from stemdl.models.base import PotentialNetwork
from stemdl.models.predictor import Predictor
from stemdl.models.scan_physics import FieldPhysics
from stemdl.models.symmetry import IDENTITY, symmetries
from stemdl.progress import Progress
from stemdl.seeds import Purpose
from stemdl.shards.fields import Fields
from stemdl.train.average import WeightAverage
from stemdl.train.data import Batch, Split, augmentation, batches, gather, misfit_squared
from stemdl.train.loss import potential_loss
from stemdl.train.optimizers import build_optimizer
from stemdl.train.randomness import torch_seed
from stemdl.train.ranks import ALONE, Ranks, first_said, mine
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
    predictor: Predictor,
    fields: Fields,
    physics: FieldPhysics | None,
    split: Split,
    stage: int,
    progress: Progress,
    ranks: Ranks = ALONE,
) -> StageHistory:
    """Train one stage, on all ranks together; the network ends with its averaged weights, the same on all of them.

    Each batch is shared out over the ranks. The result follows from the arguments, `run.seed` and the number of ranks
    alone. Raises TrainingDiverged on all ranks where a loss is NaN or infinite, CommError where a rank is lost.
    """
    training = _Training(predictor, fields, physics, split, stage, ranks)
    total = predictor.config.train.steps
    progress.start(f"train stage {stage + 1}", total, "steps")
    try:
        # Each rank drops other channels; alone, the key is what it was before there were ranks.
        own = () if ranks.size == 1 else (ranks.rank,)
        with torch_seed(predictor.config.run.seed, Purpose.DROPOUT, stage, *own):
            training.run(progress)
        training.close()
    finally:
        progress.finish()
    return training.history


class _Training:
    """What changes from step to step."""

    def __init__(
        self,
        predictor: Predictor,
        fields: Fields,
        physics: FieldPhysics | None,
        split: Split,
        stage: int,
        ranks: Ranks,
    ) -> None:
        self.ranks = ranks
        self.predictor = predictor
        self.fields = fields
        self.pictures = None if physics is None else physics.pictures
        self.split = split
        self.stage = stage
        self.seed = predictor.config.run.seed
        self.section = predictor.config.train
        self.operations = symmetries(predictor.config) if self.section.augment else (IDENTITY,)
        module = predictor.network.stage_module(stage)
        self.optimizer = build_optimizer(self.section, module)
        self.parameters = list(module.parameters())
        self.reducer = ranks.reducer(module)
        self.average = WeightAverage(module, self.section.ema_decay)
        self.history = StageHistory(stage)
        # Losses and batches since the last line of the log: an accelerator need not be waited for at every step.
        self.recent: list[tuple[torch.Tensor, NDArray[np.int64]]] = []

    def run(self, progress: Progress) -> None:
        """All steps; the network ends with its averaged weights."""
        section, started = self.section, time.monotonic()
        hardness = None
        if self.pictures is not None:
            hardness = misfit_squared(self.pictures, self.fields.noise_misfit)[self.split.train]
        order = batches(
            self.split.train,
            section.batch,
            section.steps,
            self.seed,
            self.stage,
            hardness=hardness,
            hard_share=section.hard_share,
        )
        for step, batch in enumerate(order):
            lr = learning_rate(step, section)
            self.recent.append((self._step(step, batch, lr), mine(self.ranks, batch.indices)))
            self.average.update()
            done = step + 1
            if done % section.log_every == 0 or done == section.steps:
                loss = self._log(done, lr)
                rate = done * section.batch / (time.monotonic() - started)
                progress.advance(done, loss=loss, fields_per_s=rate)
            if done % section.validate_every == 0 or done == section.steps:
                loss, r = self._validate(done)
                progress.note(f"stage {self.stage + 1}, step {done}: validation loss {loss:.4f}, median r {r:.4f}")
        self.average.copy_to_module()

    def close(self) -> None:
        """The end of the stage, on all ranks."""
        if self.reducer is not None:
            self.reducer.close()

    def _step(self, step: int, batch: Batch, lr: float) -> torch.Tensor:
        """One optimisation step; returns the mean loss of this rank's fields without waiting for it."""
        network = self.predictor.network
        network.train()
        operation = augmentation(self.operations, self.seed, self.stage, step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad(set_to_none=True)
        indices = mine(self.ranks, batch.indices)
        if len(indices):
            inputs, truth = gather(self.fields, self.pictures, indices, operation, mine(self.ranks, batch.epochs))
            loss = self._loss(network, network(inputs, self.stage), truth)
            share = (
                len(indices) * self.ranks.size / len(batch.indices)
            )  # reduced gradients are those of the whole batch
            torch.autograd.backward(loss if self.reducer is None else loss * share)
            if self.reducer is not None:
                self.reducer.finish()
        else:
            assert self.reducer is not None
            loss = torch.zeros(())
            self.reducer.reduce_nothing()
        if self.section.clip_norm:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.section.clip_norm)
        self.optimizer.step()
        return loss.detach()

    def _loss(self, network: PotentialNetwork, root: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        return potential_loss(
            root,
            truth,
            network.scale_v_angstrom,
            mean_weight=self.section.mean_weight,
            root_weight=self.section.root_weight,
            huber_beta=self.section.huber_beta,
        )

    def _log(self, done: int, lr: float) -> float:
        """Mean loss since the last line, noted in the history."""
        losses = self._finite_losses(done)
        counts = torch.tensor([len(indices) for _, indices in self.recent], dtype=losses.dtype)
        parts = self.ranks.everybody([float((losses * counts).sum()), int(counts.sum())])
        loss = float(losses.mean()) if self.ranks.size == 1 else sum(p[0] for p in parts) / sum(p[1] for p in parts)
        self.recent.clear()
        self.history.steps.append(done)
        self.history.train_loss.append(loss)
        self.history.lr.append(lr)
        return loss

    def _finite_losses(self, done: int) -> torch.Tensor:
        """Losses since the last line of the log; TrainingDiverged at the first that is no number."""
        losses = torch.stack([loss for loss, _ in self.recent])
        broken = (~losses.isfinite()).nonzero()
        found = ""
        if len(broken):
            first = int(broken[0, 0])
            items = ", ".join(str(self.fields.items[i]) for i in self.recent[first][1])
            step = done - len(losses) + first + 1
            found = f"loss is {float(losses[first])} at step {step} (items of the batch: {items})"
        found = first_said(self.ranks.everybody(found))
        if found:
            raise self._diverged(found)
        return losses

    def _validate(self, done: int) -> tuple[float, float]:
        """Mean loss and median r of the averaged weights, noted in the history."""
        if self.recent:
            self._finite_losses(done)  # names the step, which the validation could not
        if self.reducer is not None:
            self.reducer.sync_buffers()
        with self.average.applied():
            loss, r = self._judge()
        if not math.isfinite(loss):
            raise self._diverged(f"validation loss is {loss} after step {done}")
        self.history.validation_steps.append(done)
        self.history.validation_loss.append(loss)
        self.history.validation_r.append(r)
        return loss, r

    @torch.no_grad()
    def _judge(self) -> tuple[float, float]:
        """Mean loss and median Pearson r on the validation materials, with the module's present weights."""
        network, batch = self.predictor.network, self.predictor.config.reconstruct.batch
        network.eval()
        losses: list[float] = []
        correlations: list[float] = []
        own = mine(self.ranks, self.split.validation)
        for start in range(0, len(own), batch):
            indices = own[start : start + batch]
            inputs, truth = gather(self.fields, self.pictures, indices, IDENTITY)
            root = network(inputs, self.stage)
            losses.append(float(self._loss(network, root, truth)) * len(indices))
            correlations += _pearson(root.square() * network.scale_v_angstrom, truth)
        parts = self.ranks.everybody([losses, correlations])
        total = sum(sum(part[0]) for part in parts)
        return total / len(self.split.validation), float(np.median([r for part in parts for r in part[1]]))

    def _diverged(self, what: str) -> TrainingDiverged:
        return TrainingDiverged(
            f"training stage {self.stage + 1}: the {what}; lower train.lr (now {self.section.lr:g}) or raise "
            f"train.warmup_steps (now {self.section.warmup_steps})"
        )


def _pearson(prediction: torch.Tensor, truth: torch.Tensor) -> list[float]:
    """Pearson's r of each field; 0 for a constant prediction."""
    a = (prediction - prediction.mean(dim=(1, 2), keepdim=True)).flatten(1)
    b = (truth - truth.mean(dim=(1, 2), keepdim=True)).flatten(1)
    norm = a.norm(dim=1) * b.norm(dim=1)
    return [float(x) for x in torch.where(norm > 0, (a * b).sum(dim=1) / norm.clamp_min(1e-30), 0.0)]
