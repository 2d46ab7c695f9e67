"""The training stage: the stages of the network one after the other, each a plain loop of steps."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stemdl.atomic_files import replace_atomically
from stemdl.checkpoints import Checkpoint, CheckpointError, recover_checkpoint, save_checkpoint
from stemdl.comm.errors import CommError
from stemdl.config import Config, stage_hash
from stemdl.config.yaml_layer import dump_yaml
from stemdl.launch import allowed_cores
from stemdl.models.predictor import Predictor
from stemdl.models.registry import build_network
from stemdl.models.scan_physics import OPTICS_NAMES, FieldPhysics
from stemdl.progress import Progress
from stemdl.seeds import Purpose
from stemdl.shards.fields import Fields
from stemdl.train.data import Split, load_training_fields, split_fields
from stemdl.train.randomness import torch_seed
from stemdl.train.ranks import ALONE, Ranks, mine, whole_physics
from stemdl.train.stage import StageHistory, train_stage

_SHAPES_PATTERNS = frozenset((*OPTICS_NAMES, "step_angstrom"))
"""Keys of `vary` that physics pictures know of and patterns show mixed with the specimen."""


@dataclass
class TrainSummary:
    """What the stage did."""

    checkpoint: Path
    seconds: float = 0.0
    skipped: bool = False
    steps: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)


def thread_count(config: Config, per_node: int = 1) -> int:
    """Threads of each training process, of which there are so many on a node."""
    return config.train.threads or max(1, allowed_cores() // per_node)


def checkpoint_folder(config: Config) -> Path:
    """Where the checkpoints of a run are."""
    return config.run.folder / "checkpoints"


def train(config: Config, *, progress: Progress, ranks: Ranks = ALONE) -> TrainSummary:
    """Train the network on the sealed training set; stages that a checkpoint holds are not trained again.

    ranks: the processes that train together; all call this, with one run folder that all of them see. Rank 0 saves.

    The checkpoint follows from the configuration, the training set, the number of threads and of ranks; interrupted at
    any moment and called again, it ends in the same bits. A checkpoint is saved at the end of each stage and not within
    one: an interrupted stage starts again from its first step.

    Where the latest checkpoint is missing or damaged, training goes on from the newest whole one of this configuration,
    and a note says so.

    Raises
    ------
    ShardError
        The training set is missing, damaged or of another configuration.
    DetectorError
        The detector cannot be: something in electrons without a dose, or in ADU without a gain.
    NetworkConfigError
        Scan, detector and target do not suit the network.
    CheckpointError
        All checkpoints are damaged, or a new one cannot be written.
    TrainingDiverged
        A loss is no number any more.
    CommError
        A rank is lost or late, or sees other checkpoints or another training set.
    """
    started = time.monotonic()
    digest = stage_hash(config, "train")
    found = _found_by_all(config, digest, progress, ranks)
    stages = config.network.stages if config.network.name == "scanfield" else 1
    if found is not None and ranks.rank == 0:
        _write_log(config.run.folder, found.meta["history"])  # a kill may have come between checkpoint and log
    if found is not None and found.meta["stages_done"] == stages:
        return TrainSummary(found.folder, skipped=True, steps=found.meta["step"], history=found.meta["history"])
    threads = thread_count(config, ranks.per_node)
    torch.set_num_threads(threads)
    with torch_seed(config.run.seed, Purpose.INITIAL_WEIGHTS):
        network = build_network(config)
    sees_physics = network.channel_count(0) > 0
    fields = load_training_fields(config, every_epoch=not sees_physics)
    network.scale_v_angstrom.fill_(float(fields.potential.mean()))
    _same_on_all(ranks, [len(fields), fields.items[0], fields.items[-1]], "read another training set")
    predictor = Predictor(config, network, threads=threads)
    split = split_fields(fields.formulas, config.train.validation_fraction, config.run.seed)
    _note_doubts(config, fields, progress, sees_physics=sees_physics)
    run = _Run(config, predictor, fields, split, progress, digest, ranks)
    if found is not None:
        run.resume(found)
    return run.finish(stages, started)


def _note_doubts(config: Config, fields: Fields, progress: Progress, *, sees_physics: bool) -> None:
    """Say what may make the result less than it seems."""
    if len(set(fields.formulas)) == 1:
        progress.note(f"all training fields are of one material, {fields.formulas[0]}: it is validated on itself")
    untold = [] if sees_physics else [name for name in config.vary.draws if name in _SHAPES_PATTERNS]
    if untold:
        drawn = ", ".join(f"vary.{name}" for name in untold)
        progress.note(f"WARNING: {config.network.name} sees patterns alone and is told nothing of {drawn}")


def _found_by_all(config: Config, digest: str, progress: Progress, ranks: Ranks) -> Checkpoint | None:
    """`_found`, on rank 0 first: it puts damaged checkpoints aside, which only one may do."""
    found = None
    for rank in (0, 1):
        if min(ranks.rank, 1) == rank:
            found = _found(config, digest, progress)
        ranks.everybody(None)
    _same_on_all(ranks, None if found is None else found.folder.name, "find another checkpoint")
    return found


def _found(config: Config, digest: str, progress: Progress) -> Checkpoint | None:
    """The checkpoint of this very configuration to go on from, if there is one; what is wrong with others is said."""
    folder = checkpoint_folder(config)
    try:
        found, problems = recover_checkpoint(folder, digest)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}; no whole checkpoint of this configuration is left: to train from the start, remove {folder}"
        ) from error
    if problems:
        instead = "training starts anew" if found is None else f"{found.folder.name} is used instead"
        progress.note(f"WARNING: {'; '.join(problems)}; {instead}")
    return found


@dataclass
class _Run:
    """State between stages."""

    config: Config
    predictor: Predictor
    fields: Fields
    split: Split
    progress: Progress
    digest: str
    ranks: Ranks
    history: list[dict[str, Any]] = field(default_factory=list)
    stages_done: int = 0

    def resume(self, checkpoint: Checkpoint) -> None:
        """Take over the stages that a checkpoint holds."""
        checkpoint.restore(self.predictor.network)
        self.history = list(checkpoint.meta["history"])
        self.stages_done = checkpoint.meta["stages_done"]
        self.progress.note(f"training goes on after stage {self.stages_done} ({checkpoint.folder.name})")

    def finish(self, stages: int, started: float) -> TrainSummary:
        """Train what is left and save after each stage."""
        checkpoint = checkpoint_folder(self.config)
        first = physics = self._look(None, "physics of the patterns", None)
        answer = None
        for stage in range(stages):
            if stage > 0:
                answer = self._answer(physics, stage - 1)
                physics = self._look(answer, f"physics after stage {stage}", first)
            if stage < self.stages_done:
                continue
            record = train_stage(self.predictor, self.fields, physics, self.split, stage, self.progress, self.ranks)
            self.stages_done = stage + 1
            self.history.append(asdict(record))
            checkpoint = checkpoint_folder(self.config) / self._save()
        self.ranks.write_counters(self.config.run.folder / "log" / "comm.json")
        return TrainSummary(
            checkpoint,
            seconds=time.monotonic() - started,
            steps=stages * self.config.train.steps,
            history=self.history,
        )

    def _look(self, answer: NDArray[np.float32] | None, name: str, first: FieldPhysics | None) -> FieldPhysics | None:
        """Physics of all fields, from a flat start or from the answers of the stage before."""
        if self.predictor.physics is None:
            return None
        own = mine(self.ranks, np.arange(len(self.fields)))
        self.progress.start(name, len(own), "fields")
        begin = None if answer is None else (answer[own], None if first is None else _part(first, own))
        assert self.fields.detector is None, "pictures are made of what is read"
        share = self.predictor.look(
            _rows(self.fields.amplitude, own),
            self.fields.thickness_angstrom[own],
            begin,
            self.progress.advance,
            parameters={key: column[own] for key, column in self.fields.parameters.items()},
        )
        self.progress.finish()
        assert share is not None
        return whole_physics(self.ranks, share, len(self.fields))

    def _answer(self, physics: FieldPhysics | None, stage: int) -> NDArray[np.float32]:
        """What a trained stage says of every field: the start of the next one's physics."""
        reconstruct = self.config.reconstruct
        own = mine(self.ranks, np.arange(len(self.fields)))
        prediction = self.predictor.stage(
            _rows(self.fields.amplitude, own),
            None if physics is None else _part(physics, own),
            stage,
            parameters={key: column[own] for key, column in self.fields.parameters.items()},
            average=reconstruct.symmetry_average,
            batch=reconstruct.batch,
        )
        return self.ranks.whole(prediction.potential, len(self.fields))

    def _save(self) -> str:
        """Rank 0 saves; what goes wrong is raised on all ranks. Returns the folder's name."""
        if self.ranks.rank > 0:
            name, problem = self.ranks.everybody(None)[0]
            if problem:
                raise CheckpointError(problem)
            return str(name)
        meta = {
            "config_hash": self.digest,
            "stages_done": self.stages_done,
            "history": self.history,
            "network": self.config.network.name,
            "scale_v_angstrom": float(self.predictor.network.scale_v_angstrom),
            "seed": self.config.run.seed,
        }
        try:
            saved = save_checkpoint(
                checkpoint_folder(self.config),
                self.stages_done * self.config.train.steps,
                self.predictor.network.state_dict(),
                meta,
                dump_yaml(self.config.model_dump(mode="json")),
            )
            _write_log(self.config.run.folder, self.history)
        except (CheckpointError, OSError) as error:
            self.ranks.everybody(["", str(error)])
            raise
        self.ranks.everybody([saved.name, ""])
        return saved.name


def _rows(patterns: NDArray[np.float16], indices: NDArray[np.int64]) -> NDArray[np.float16]:
    return patterns if len(indices) == len(patterns) else patterns[indices]


def _part(physics: FieldPhysics, indices: NDArray[np.int64]) -> FieldPhysics:
    if len(indices) == len(physics.pictures):
        return physics
    chosen = torch.from_numpy(indices)
    return FieldPhysics(physics.pictures[chosen], physics.box[chosen])


def _same_on_all(ranks: Ranks, value: object, otherwise: str) -> None:
    """Raise CommError on all ranks where they do not see the same files."""
    seen = ranks.everybody(value)
    others = [rank for rank, one in enumerate(seen) if one != seen[0]]
    if others:
        raise CommError(
            f"ranks {others[:8]} {otherwise} than rank 0 ({seen[others[0]]}, there {seen[0]}): the run folder must be "
            "on a file system that all nodes see"
        )


def _write_log(folder: Path, history: list[dict[str, Any]]) -> None:
    """One JSON line for each logged step, for programs that read along.

    The whole file each time, from the history of the checkpoint: no step is in it twice, and none is torn.
    """
    path = folder / "log" / "rank-0.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [row for record in history for row in StageHistory(**record).rows()]
    replace_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
