"""What cannot be made, and what ends before its time: on record, named, and done by the next call where that can be."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import data_gen.sharing.maker
from data_gen.generate import SimulationError, SimulationFault, SimulationSummary, simulate
from data_gen.sample import make_sample
from data_gen.worklist import Part
from stemdl.config import Config, stage_hash
from stemdl.shards import Sample, ShardSet
from stemdl.time_limit import TimeLimit
from tests import small_ranks
from tests.small_run import Arrays, Recorder, content, make_shards, small_config

one_thread = pytest.fixture(autouse=True)(small_ranks.one_thread)


def make(config: Config, progress: Recorder | None = None, limit: TimeLimit | None = None) -> SimulationSummary:
    """The stage, without other processes."""
    return simulate(config, progress=progress or Recorder(), crew=small_ranks.team_of_one(), limit=limit)


def instead(monkeypatch: pytest.MonkeyPatch, act: Callable[[str, int, Sample], None]) -> list[tuple[str, int]]:
    """Do something to samples before they are written; returns the items that were begun."""
    begun: list[tuple[str, int]] = []

    def changed(config: Config, part: Part, item: int, engine: object) -> Sample:
        begun.append((part.name, item))
        sample = make_sample(config, part, item, engine)  # type: ignore[arg-type]
        act(part.name, item, sample)
        return sample

    monkeypatch.setattr(data_gen.sharing.maker, "make_sample", changed)
    return begun


def failed_record(config: Config) -> list[dict[str, object]]:
    record = json.loads((config.run.folder / "shards" / "failed.json").read_text())
    assert record["config_hash"] == stage_hash(config, "simulate")
    return list(record["failed"])


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    """The set as it is made item after item by one writer."""
    config = small_config(tmp_path_factory.mktemp("reference"))
    make_shards(config)
    return content(config.run.folder)


def test_the_costly_part_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held-out fields have slices half as thick: every one of the same specimen takes longer."""
    begun = instead(monkeypatch, lambda part, item, sample: None)
    config = small_config(tmp_path, "specimen.thickness_angstrom=[8.0, 8.0]", "simulation.samples=6")
    make(config)
    assert sorted(begun[:5]) == [("held_out", item) for item in range(5)]


def test_what_may_go_better_is_tried_again_and_what_cannot_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: Arrays
) -> None:
    def spoil(part: str, item: int, sample: Sample) -> None:
        if (part, item) == ("train", 2):
            raise ZeroDivisionError("no way")
        if (part, item) == ("train", 4):
            raise MemoryError("9 GB")
        if (part, item) == ("held_out", 1):
            sample.potential[0, 0] = float("nan")

    instead(monkeypatch, spoil)
    config = small_config(tmp_path)
    progress = Recorder()
    summary = make(config, progress)
    assert [(one.part, one.item, one.kind) for one in summary.failed] == [
        ("held_out", 1, "sample"), ("train", 2, "fault"), ("train", 4, "memory"),
    ]  # fmt: skip
    assert (summary.train_samples, summary.held_out_samples) == (7, 4)
    assert [(one["part"], one["item"], one["kind"]) for one in failed_record(config)] == [
        (one.part, one.item, one.kind) for one in summary.failed
    ]
    said = "\n".join(progress.notes)
    assert re.search(r"failed: train items 2: cif:[\w-]+: ZeroDivisionError: no way", said)
    assert re.search(r"failed: held_out items 1: cif:[\w-]+: item 1: .*potential", said)
    assert "3 items in all" in said
    assert "the next call tries 2 of them again" in said

    begun = instead(monkeypatch, lambda part, item, sample: None)
    second = make(config, progress)
    assert sorted(begun) == [("train", 2), ("train", 4)]
    assert [one.item for one in second.failed] == [1]
    assert [one["item"] for one in failed_record(config)] == [1]
    assert make(config).skipped
    (config.run.folder / "shards" / "failed.json").unlink()
    make(config)
    assert content(config.run.folder) == reference


def test_failures_are_on_record_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is killed afterwards has named them."""
    seen: list[int] = []

    def spoil(part: str, item: int, sample: Sample) -> None:
        if len(seen) == 0:
            seen.append(item)
            raise ZeroDivisionError
        deadline = time.monotonic() + 20.0
        while not failed_record(config) and time.monotonic() < deadline:
            time.sleep(0.01)

    instead(monkeypatch, spoil)
    config = small_config(tmp_path, "simulation.samples=2", "held_out.samples=2")
    make(config)
    assert [one["item"] for one in failed_record(config)] == seen


def test_a_fault_at_every_item_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(part: str, item: int, sample: Sample) -> None:
        raise ZeroDivisionError("no way")

    begun = instead(monkeypatch, fail)
    config = small_config(tmp_path, "simulation.samples=400")
    with pytest.raises(SimulationFault, match=r"none of the 400 train fields could be made: .*ZeroDivisionError"):
        make(config)
    assert 20 <= len(begun) < 200, "it does not go on for ever"


def test_a_set_without_room_in_memory_is_the_users_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(part: str, item: int, sample: Sample) -> None:
        raise MemoryError("9 GB")

    instead(monkeypatch, fail)
    config = small_config(tmp_path, "simulation.samples=2", "held_out.samples=2")
    with pytest.raises(SimulationError, match=r"none of the 2 train .*out of memory \(9 GB\); lower simulation\.probe"):
        make(config)


def test_the_end_of_the_time_seals_what_is_made_and_the_next_call_does_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: Arrays
) -> None:
    limit = TimeLimit(time.monotonic() + 1e6, "Slurm job 7", margin_s=40.0)

    def late(part: str, item: int, sample: Sample) -> None:
        if len(begun) == 5:
            object.__setattr__(limit, "ends_at", time.monotonic())
            deadline = time.monotonic() + 10.0  # the grace is longer
            while not progress.notes and time.monotonic() < deadline:
                time.sleep(0.01)

    begun = instead(monkeypatch, late)
    config = small_config(tmp_path, "simulation.samples_per_shard=50")
    progress = Recorder()
    summary = make(config, progress, limit)
    assert summary.requeue
    assert summary.outcome.out_of_time == "Slurm job 7"
    assert summary.train_samples + summary.held_out_samples == len(begun) == 5
    assert summary.failed == []
    assert any("time is up (Slurm job 7)" in note for note in progress.notes)
    assert len(content_so_far(config)) == 5
    assert not make(config).requeue
    assert content(config.run.folder) == reference


@pytest.mark.parametrize("which", [signal.SIGUSR2, signal.SIGTERM])
def test_a_scheduler_that_ends_the_job_gets_what_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: signal.Signals
) -> None:
    def signalled(part: str, item: int, sample: Sample) -> None:
        if len(begun) == 3:
            os.kill(os.getpid(), which)

    begun = instead(monkeypatch, signalled)
    config = small_config(tmp_path, "simulation.samples_per_shard=50")
    summary = make(config)
    assert summary.requeue
    assert summary.outcome.signal == which
    assert len(content_so_far(config)) == 3


def test_ctrl_c_on_a_rank_seals_what_is_made_and_is_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signalled(part: str, item: int, sample: Sample) -> None:
        if len(begun) == 3:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5.0)

    begun = instead(monkeypatch, signalled)
    config = small_config(tmp_path, "simulation.samples_per_shard=50")
    with pytest.raises(KeyboardInterrupt):
        make(config)
    assert len(content_so_far(config)) == 2


def content_so_far(config: Config) -> set[tuple[str, int]]:
    """Items that are sealed, each of them once, with the hash that they had."""
    found: set[tuple[str, int]] = set()
    for part in ("train", "held_out"):
        folder = config.run.folder / "shards" / part
        if (folder / "manifest.jsonl").exists():
            with ShardSet(folder, verify="hash") as shards:
                assert not shards.duplicates
                found |= {(part, item) for item in shards.items}
    return found


def test_a_rank_that_was_cut_off_is_named_by_the_next_call(tmp_path: Path) -> None:
    config = small_config(tmp_path, "simulation.samples=3", "held_out.samples=2")
    make(config)
    log = config.run.folder / "log" / "simulate-rank-00004.jsonl"
    log.write_text('{"event": "start"}\n{"event": "item", "part": "train", "item": 7, "crystal": "cif:cu"}\n')
    progress = Recorder()
    assert make(config, progress).skipped
    (note,) = progress.notes
    assert note.startswith("rank 4 of an earlier run ended without a word, making train item 7 (cif:cu)")
    progress = Recorder()
    make(config, progress)
    assert progress.notes == [], "told once"
