"""A trained network applied to fields: physics channels, all stages, symmetries; for training and reconstruction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from stemdl.config import Config
from stemdl.models.base import FieldInputs, PotentialNetwork
from stemdl.models.scan_physics import OPTICS_NAMES, SCAN_STEP, FieldPhysics, ScanPhysics
from stemdl.models.symmetry import IDENTITY, apply_to_patterns, apply_to_picture, symmetries, undo_on_picture

Patterns = NDArray[np.float16] | NDArray[np.float32]
Parameters = Mapping[str, NDArray[np.float64]]
"""What was recorded with each field, (N,) by name, as shards keep it; a configuration's values stand for the rest."""

_USED = (*OPTICS_NAMES, SCAN_STEP)


@contextmanager
def one_thread_per_operation() -> Iterator[None]:
    """Fields are computed side by side, each by one thread: small FFTs gain nothing from more, and bits do not depend
    on how many cores there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def field_physics(
    physics: ScanPhysics,
    amplitude: Patterns,
    thickness_angstrom: Sequence[float] | NDArray[np.float64],
    start: tuple[NDArray[np.float32], FieldPhysics] | None = None,
    *,
    parameters: Parameters | None = None,
    threads: int,
    done: Callable[[int], None] | None = None,
) -> FieldPhysics:
    """Pictures of N fields, from a flat start or from answers (N, y, x) in V·Å and the physics before them.

    Each field is looked at with its own optics and scan step where `parameters` have them. `done` is told the number
    of finished fields.
    """
    used = {} if parameters is None else {name: parameters[name] for name in _USED if name in parameters}

    def one(index: int) -> FieldPhysics:
        patterns = torch.from_numpy(np.asarray(amplitude[index], dtype=np.float32))
        thickness = float(thickness_angstrom[index])
        own = {name: float(column[index]) for name, column in used.items()}
        if start is None:
            return physics.first(patterns, thickness, own)
        return physics.after(patterns, thickness, torch.from_numpy(start[0][index]), start[1].box[index], own)

    whole: FieldPhysics | None = None
    with one_thread_per_operation(), ThreadPoolExecutor(threads) as pool:
        for index, result in enumerate(pool.map(one, range(len(amplitude)))):
            if whole is None:
                whole = _room_for(result, len(amplitude))
            # Copied at once: small results kept among the large temporaries of the next fields would pin the memory
            # around them, two thirds of a MiB a field.
            whole.pictures[index] = result.pictures
            whole.box[index] = result.box
            if done is not None:
                done(index + 1)
    assert whole is not None, "no fields"
    return whole


def _room_for(result: FieldPhysics, count: int) -> FieldPhysics:
    return FieldPhysics(
        result.pictures.new_empty((count, *result.pictures.shape)), result.box.new_empty((count, *result.box.shape))
    )


@dataclass(frozen=True)
class Prediction:
    """What a network says of N fields."""

    potential: NDArray[np.float32]
    """(N, y, x) projected potential in V·Å: the mean over symmetries."""
    spread: NDArray[np.float32]
    """(N, y, x) standard deviation over the symmetries in V·Å; zero where only one was used."""


class Predictor:
    """A network, the physics it looks through, and the symmetries it may be averaged over."""

    def __init__(self, config: Config, network: PotentialNetwork, *, threads: int) -> None:
        self.config = config
        self.network = network
        self.threads = threads
        self.physics = ScanPhysics(config) if network.channel_count(0) else None

    def look(
        self,
        amplitude: Patterns,
        thickness_angstrom: NDArray[np.float64],
        start: tuple[NDArray[np.float32], FieldPhysics | None] | None = None,
        done: Callable[[int], None] | None = None,
        *,
        parameters: Parameters | None = None,
    ) -> FieldPhysics | None:
        """Physics of many fields (see `field_physics`); None for a network without any."""
        if self.physics is None:
            return None
        begin = None
        if start is not None:
            assert start[1] is not None
            begin = (start[0], start[1])
        return field_physics(
            self.physics,
            amplitude,
            thickness_angstrom,
            begin,
            parameters=parameters,
            threads=self.threads,
            done=done,
        )

    @torch.no_grad()
    def stage(
        self,
        amplitude: Patterns,
        physics: FieldPhysics | None,
        stage: int,
        *,
        parameters: Parameters | None = None,
        average: bool,
        batch: int,
    ) -> Prediction:
        """One stage of the network on many fields, averaged over the probe's symmetries if asked."""
        self.network.eval()
        operations = symmetries(self.config) if average else (IDENTITY,)
        steps = scan_steps(parameters, slice(None))
        means, spreads = [], []
        for start in range(0, len(amplitude), batch):
            part = slice(start, start + batch)
            inputs = FieldInputs(
                torch.from_numpy(np.asarray(amplitude[part], dtype=np.float32)),
                None if physics is None else physics.pictures[part],
                None if steps is None else steps[part],
            )
            answers = torch.stack([self._answer(inputs, stage, operation) for operation in operations])
            means.append(answers.mean(dim=0))
            spreads.append(answers.std(dim=0, correction=0))
        return Prediction(torch.cat(means).numpy(), torch.cat(spreads).numpy())

    def _answer(self, inputs: FieldInputs, stage: int, operation: int) -> torch.Tensor:
        return undo_on_picture(self.network.potential(turned(inputs, operation), stage), operation)

    def predict(
        self,
        amplitude: Patterns,
        thickness_angstrom: NDArray[np.float64],
        *,
        parameters: Parameters | None = None,
        average: bool,
        batch: int,
        done: Callable[[int], None] | None = None,
    ) -> tuple[Prediction, FieldPhysics | None]:
        """All stages, one after the other. Returns the last answer and the physics before the first stage.

        parameters: what each field was recorded with where that differs from the configuration (see `field_physics`).
        `done` counts fields times stages.
        """
        first: FieldPhysics | None = None
        answer: Prediction | None = None
        for stage in range(self.network.stages):
            tell = None if done is None else _counting_from(stage * len(amplitude), done)
            start = None if answer is None else (answer.potential, first)
            physics = self.look(amplitude, thickness_angstrom, start, tell, parameters=parameters)
            first = physics if stage == 0 else first
            answer = self.stage(amplitude, physics, stage, parameters=parameters, average=average, batch=batch)
        assert answer is not None
        return answer, first


def scan_steps(parameters: Parameters | None, indices: NDArray[np.int64] | slice) -> torch.Tensor | None:
    """(b,) float32 scan steps in Å of some fields, None where none are recorded."""
    if parameters is None or SCAN_STEP not in parameters:
        return None
    return torch.from_numpy(parameters[SCAN_STEP][indices].astype(np.float32))


def turned(inputs: FieldInputs, operation: int) -> FieldInputs:
    """Inputs under an operation of `stemdl.models.symmetry`."""
    channels = None if inputs.channels is None else apply_to_picture(inputs.channels, operation)
    return FieldInputs(apply_to_patterns(inputs.amplitude, operation), channels, inputs.scan_step_angstrom)


def _counting_from(offset: int, done: Callable[[int], None]) -> Callable[[int], None]:
    return lambda count: done(offset + count)
