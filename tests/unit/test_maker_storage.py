"""One maker in this process, with a coordinator of a few lines: what it says, in which order, and what it leaves."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

import data_gen.sharing.maker
from data_gen.sample import axes_of
from data_gen.sharing.messages import (
    AllSealed,
    Broken,
    Ended,
    Failure,
    FromMaker,
    Made,
    Seal,
    Sealed,
    Stop,
)
from maker_cases import Script, assign, events, instead, order, sealed, work
from stemdl.config import Config, stage_hash
from stemdl.shards import Sample, ShardError, ShardWriter
from stemdl.shards.drain import Drain
from tests import small_ranks
from tests.small_run import small_config

one_thread = pytest.fixture(autouse=True)(small_ranks.one_thread)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return small_config(tmp_path, "simulation.samples_per_shard=2")


@pytest.fixture
def drained(tmp_path: Path) -> Config:
    buffer = tmp_path / "node"
    buffer.mkdir()
    return small_config(
        tmp_path, "simulation.samples_per_shard=1", "burst_buffer.use=true", f"burst_buffer.folder={buffer}",
        "burst_buffer.drain=true", "burst_buffer.reserve_gb=0.001",
    )  # fmt: skip


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT])
def test_a_signal_is_a_stop_with_a_name(config: Config, monkeypatch: pytest.MonkeyPatch, which: signal.Signals) -> None:
    monkeypatch.setitem(data_gen.sharing.maker.SIGNAL_GRACE_S, which, 0.01)
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT, signal.SIGALRM)}

    def signalled() -> None:
        os.kill(os.getpid(), which)
        time.sleep(5.0)

    instead(monkeypatch, 1, signalled)
    script = work(config, Script(assign(config, 0, 1, 2)))
    assert script.told[-1] == Ended(which)
    assert order(script)[-3:-1] == [("put back", 1), ("sealed", 0)]
    assert sealed(config) == [0]
    assert events(config)[-1]["signal"] == which
    assert {one: signal.getsignal(one) for one in before} == before


def test_a_signal_wakes_a_maker_that_waits(config: Config) -> None:
    script = Script()
    script.answers = [Seal()]  # after which nothing more comes
    told = script.tell

    def tell(message: FromMaker) -> None:
        if isinstance(message, AllSealed):
            script.told.append(message)
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        else:
            told(message)

    script.tell = tell  # type: ignore[method-assign]
    work(config, script)
    assert script.told[-1] == Ended(signal.SIGTERM)


def test_a_stop_that_comes_before_it_listens_is_heard(config: Config) -> None:
    script = Script()
    script.inbox.put(Stop(0.0))
    assert order(work(config, script)) == ["Hello", "Want", "Ended"]


def test_a_folder_that_cannot_be_written_ends_it_with_the_reason(config: Config) -> None:
    (config.run.folder / "shards").mkdir(parents=True)
    (config.run.folder / "shards" / "train").write_text("a file where a folder is needed")
    script = work(config, Script(assign(config, 0, 1)))
    assert isinstance(script.told[-1], Broken)
    assert not script.told[-1].is_ours
    assert "rank 3: " in script.told[-1].text
    assert "train: shards cannot be written here" in script.told[-1].text
    assert not script.of(Failure, Made)
    assert events(config)[-1]["event"] == "end"
    assert "shards cannot be written" in str(events(config)[-1]["error"]), "it did not end without a word"


def test_another_writer_of_the_same_rank_ends_it_with_the_reason(config: Config) -> None:
    folder, digest = config.run.folder / "shards" / "train", stage_hash(config, "simulate")
    with ShardWriter(folder, rank=3, axes=axes_of(config), config_hash=digest, samples_per_shard=2):
        script = work(config, Script(assign(config, 0)))
    assert isinstance(script.told[-1], Broken)
    assert "another writer of rank 3" in script.told[-1].text


def test_a_full_disk_ends_it_and_keeps_what_is_sealed(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(writer: ShardWriter, sample: Sample) -> None:
        writer._end()
        raise ShardError("shard-00003-00001.h5: a sample could not be written: No space left on device")

    add = ShardWriter.add
    monkeypatch.setattr(ShardWriter, "add", lambda writer, one: (full if one.item == 2 else add)(writer, one))
    script = work(config, Script(assign(config, 0, 1, 2, 3)))
    assert isinstance(script.told[-1], Broken)
    assert not script.told[-1].is_ours
    assert "No space left" in script.told[-1].text
    assert not script.of(Failure), "no fault of the sample"
    assert sealed(config) == [0, 1]


def test_a_log_that_cannot_be_written_ends_it_with_the_reason(config: Config) -> None:
    config.run.folder.mkdir()
    (config.run.folder / "log").write_text("a file")
    (broken,) = work(config, Script(assign(config, 0))).told
    assert isinstance(broken, Broken)
    assert not broken.is_ours
    assert "log" in broken.text


def test_a_fault_outside_of_items_is_ours_with_its_traceback(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(name: str) -> None:
        raise ImportError("no engine here")

    monkeypatch.setattr(data_gen.sharing.maker, "engine_by_name", lacking)
    last = work(config, Script(assign(config, 0))).told[-1]
    assert isinstance(last, Broken)
    assert last.is_ours
    assert last.text.startswith("rank 3: ImportError: no engine here\nTraceback")


def test_what_a_lost_maker_had_sealed_here_is_no_failure(config: Config) -> None:
    """It was killed between the line in the manifest and its message, and its items were handed out again."""
    work(config, Script(assign(config, 0, 1)))
    again = work(config, Script(assign(config, 1, 2, 0, 5)))
    assert not again.of(Failure)
    assert sealed(config) == [0, 1, 2, 5]
    told = {item for message in again.of(Sealed) if isinstance(message, Sealed) for _, item in message.keys}
    assert told == {0, 1, 2, 5}
    assert [one.key[1] for one in again.of(Made) if isinstance(one, Made)] == [1, 2, 0, 5]


def test_a_shard_on_the_nodes_storage_counts_as_sealed_when_it_is_in_the_run_folder(drained: Config) -> None:
    script = work(drained, Script(assign(drained, 0, 1, 2)), number=0)
    assert {item for one in script.of(Sealed) if isinstance(one, Sealed) for _, item in one.keys} == {0, 1, 2}
    assert isinstance(script.told[-1], Ended)
    assert sealed(drained) == [0, 1, 2]


def test_a_copy_that_fails_is_no_failure_of_the_sample(drained: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(self: object) -> None:
        raise ShardError("shard-00000-00000.h5 could not be copied: No space left on device")

    monkeypatch.setattr(Drain, "check", cannot)
    script = work(drained, Script(assign(drained, 0, 1, 2)), number=0)
    assert not script.of(Failure)
    assert isinstance(script.told[-1], Broken)
    assert "could not be copied" in script.told[-1].text
