"""One maker in this process, with a coordinator of a few lines: what it says, in which order, and what it leaves."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
import torch

from data_gen.engines import engine_by_name
from data_gen.materials import BadCrystal
from data_gen.sample import make_sample
from data_gen.sharing.messages import (
    Ended,
    Failure,
    Hello,
    Made,
    Seal,
)
from data_gen.worklist import parts
from maker_cases import Script, assign, events, instead, order, sealed, work
from stemdl.config import Config, fingerprint
from stemdl.shards import Sample
from tests import small_ranks
from tests.small_run import small_config

one_thread = pytest.fixture(autouse=True)(small_ranks.one_thread)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return small_config(tmp_path, "simulation.samples_per_shard=2")


def test_it_says_everything_in_order(config: Config) -> None:
    script = work(config, Script(assign(config, 4, 0, 6)))
    assert order(script) == [
        "Hello", "Want", ("begun", 4), ("made", 4), ("begun", 0), ("sealed", 4, 0), ("made", 0), ("begun", 6),
        ("made", 6), "Want", ("sealed", 6), "Ended",
    ]  # fmt: skip
    assert script.told[0] == Hello(os.uname().nodename, os.getpid(), fingerprint(config))
    assert script.told[-1] == Ended(0)
    assert all(made.seconds > 0 for made in script.told if isinstance(made, Made))
    assert sealed(config) == [0, 4, 6]
    assert torch.get_num_threads() == 1
    log = events(config)
    assert [one["event"] for one in log] == ["start", *["item", "made"] * 3, "end"]
    assert (log[1]["part"], log[1]["item"], log[0]["process"]) == ("train", 4, os.getpid())
    assert not [path for path in (config.run.folder / "shards").rglob(".*") if path.is_file()]


def test_before_a_quick_last_item_it_asks_for_more(config: Config) -> None:
    script = Script(assign(config, 0, 1, estimated_s=0.1), assign(config, 2, estimated_s=0.1))
    assert order(work(config, script)) == [
        "Hello", "Want", ("begun", 0), ("made", 0), ("begun", 1), "Want", ("sealed", 0, 1), ("made", 1), ("begun", 2),
        "Want", ("made", 2), ("sealed", 2), "Ended",
    ]  # fmt: skip


def test_told_to_seal_it_seals_and_waits(config: Config) -> None:
    script = Script(assign(config, 0), Seal(), assign(config, 1))
    assert order(work(config, script)) == [
        "Hello", "Want", ("begun", 0), ("made", 0), "Want", ("sealed", 0), "AllSealed", ("begun", 1), ("made", 1),
        "Want", ("sealed", 1), "Ended",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (BadCrystal("cif:x", "too thin"), "specimen", "^too thin$"),
        (ZeroDivisionError("no way"), "fault", "^ZeroDivisionError: no way$"),
        (MemoryError("9 GB"), "memory", r"^out of memory \(9 GB\); lower simulation\.probe_chunk"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "memory", "you tried"),
        (torch.OutOfMemoryError("CUDA out of memory"), "memory", "CUDA"),
        (RuntimeError("unexpected state"), "fault", "^RuntimeError: unexpected state$"),
        (OSError(5, "Input/output error"), "fault", "Input/output error"),
    ],
)
def test_an_item_that_fails_is_told_and_the_next_one_made(
    config: Config, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str, said: str
) -> None:
    def fail() -> None:
        raise error

    instead(monkeypatch, 1, fail)
    script = work(config, Script(assign(config, 0, 1, 2)))
    (failure,) = script.of(Failure)
    assert isinstance(failure, Failure)
    assert (failure.item, failure.kind) == (1, kind)
    assert re.search(said, failure.reason)
    crystal = parts(config)[0][0].crystal_of(1).name
    assert failure.crystal == ("cif:x" if kind == "specimen" else crystal)
    assert sealed(config) == [0, 2]
    log = events(config)
    assert next(one for one in log if one["event"] == "failed")["reason"] == failure.reason
    assert any("Traceback" in str(one.get("text")) for one in log) == (kind == "fault")


def test_an_item_that_takes_too_long_is_ended_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(tmp_path, "simulation.item_timeout_s=0.5")

    def sleep() -> None:
        for _ in range(10_000):
            time.sleep(0.005)

    instead(monkeypatch, 1, sleep)
    script = work(config, Script(assign(config, 0, 1, 2)))
    (failure,) = script.of(Failure)
    assert isinstance(failure, Failure)
    assert (failure.item, failure.kind) == (1, "time")
    assert failure.reason == "took longer than 0.5 s (simulation.item_timeout_s)"
    assert sealed(config) == [0, 2]


def test_a_sample_that_is_none_is_refused_and_named(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    part, engine = parts(config)[0][0], engine_by_name(config.simulation.engine)

    def poisoned() -> Sample:
        sample = make_sample(config, part, 1, engine)
        sample.potential[0, 0] = float("nan")
        return sample

    instead(monkeypatch, 1, poisoned)
    script = work(config, Script(assign(config, 0, 1, 2)))
    (failure,) = script.of(Failure)
    assert isinstance(failure, Failure)
    assert (failure.item, failure.kind) == (1, "sample")
    assert "item 1" in failure.reason
    assert sealed(config) == [0, 2]


def test_a_stop_lets_the_item_under_way_end_within_its_grace(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(assign(config, 0, 1, 2))
    instead(monkeypatch, 1, lambda: script.say_stop(60.0))
    work(config, script)
    assert order(script)[2:] == [
        ("begun", 0), ("made", 0), ("begun", 1), ("sealed", 0, 1), ("made", 1), "Ended",
    ]  # fmt: skip
    assert sealed(config) == [0, 1]


def test_a_stop_without_grace_drops_it_and_seals_what_is_made(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(assign(config, 0, 1, 2))

    def stopped() -> None:
        script.say_stop(0.0)
        time.sleep(5.0)

    instead(monkeypatch, 1, stopped)
    work(config, script)
    assert order(script)[2:] == [
        ("begun", 0), ("made", 0), ("begun", 1), ("put back", 1), ("sealed", 0), "Ended",
    ]  # fmt: skip
    assert sealed(config) == [0]
    assert events(config)[-1]["event"] == "end"
