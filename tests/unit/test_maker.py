"""One maker in this process, with a coordinator of a few lines: what it says, in which order, and what it leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch

import data_gen.sharing.maker
from data_gen.engines import engine_by_name
from data_gen.materials import BadCrystal
from data_gen.sample import axes_of, make_sample
from data_gen.sharing.maker import Maker
from data_gen.sharing.messages import (
    AllSealed,
    Assign,
    Begun,
    Broken,
    Ended,
    Failure,
    FromMaker,
    Hello,
    ItemKey,
    Made,
    PutBack,
    Seal,
    Sealed,
    Stop,
    Task,
    ToMaker,
    Want,
)
from data_gen.sharing.vault import Berth
from data_gen.worklist import parts
from stemdl.config import Config, fingerprint, stage_hash
from stemdl.shards import Sample, ShardError, ShardSet, ShardWriter
from stemdl.shards.drain import Drain
from tests import small_ranks
from tests.small_run import small_config

one_thread = pytest.fixture(autouse=True)(small_ranks.one_thread)


class Script:
    """The coordinator's side: an answer to each Want, then Stop; everything that was said."""

    def __init__(self, *answers: ToMaker) -> None:
        self.inbox: SimpleQueue[ToMaker] = SimpleQueue()
        self.told: list[FromMaker] = []
        self.answers = list(answers)
        self.stop: Callable[[float], None] = lambda grace_s: None

    def tell(self, message: FromMaker) -> None:
        """Remember it; a Want is answered with all answers up to the next items."""
        self.told.append(message)
        if isinstance(message, Want | AllSealed):
            self.inbox.put(self.answers.pop(0) if self.answers else Stop(0.0))

    def on_stop(self, call: Callable[[float], None]) -> None:
        """Remember it."""
        self.stop = call

    def say_stop(self, grace_s: float) -> None:
        """As the thread that listens does."""
        self.stop(grace_s)
        self.inbox.put(Stop(grace_s))

    def of(self, *kinds: type) -> list[FromMaker]:
        """What was said of these kinds."""
        return [message for message in self.told if isinstance(message, kinds)]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return small_config(tmp_path, "simulation.samples_per_shard=2")


def key(item: int) -> ItemKey:
    return "train", item


def assign(config: Config, *items: int, estimated_s: float = 5.0) -> Assign:
    part = parts(config)[0][0]
    return Assign(tuple(Task(part, item, estimated_s).alone() for item in items))


def work(config: Config, script: Script, number: int = 3) -> Script:
    Maker(config, Berth(number, 4, number, 4), script, stage_hash(config, "simulate")).run()
    return script


def order(script: Script) -> list[object]:
    """What was said, in short."""
    names = {Begun: "begun", Made: "made", Failure: "failed", PutBack: "put back"}
    short: list[object] = []
    for message in script.told:
        if isinstance(message, Begun | Made | Failure | PutBack):
            short.append((names[type(message)], message.key[1]))
        elif isinstance(message, Sealed):
            short.append(("sealed", *(item for _, item in message.keys)))
        else:
            short.append(type(message).__name__)
    return short


def sealed(config: Config) -> list[int]:
    folder = config.run.folder / "shards" / "train"
    if not (folder / "manifest.jsonl").exists():
        return []
    with ShardSet(folder, verify="hash") as shards:
        assert not shards.duplicates
        return sorted(shards.items)


def events(config: Config, number: int = 3) -> list[dict[str, object]]:
    path = config.run.folder / "log" / f"simulate-rank-{number:05d}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def instead(monkeypatch: pytest.MonkeyPatch, item: int, act: Callable[[], object]) -> None:
    """Do something else in place of one item."""

    def changed(config: Config, part: object, number: int, engine: object) -> object:
        if number == item:
            done = act()
            if done is not None:
                return done
        return make_sample(config, part, number, engine)  # type: ignore[arg-type]

    monkeypatch.setattr(data_gen.sharing.maker, "make_sample", changed)


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


@pytest.fixture
def drained(tmp_path: Path) -> Config:
    buffer = tmp_path / "node"
    buffer.mkdir()
    return small_config(
        tmp_path, "simulation.samples_per_shard=1", "burst_buffer.use=true", f"burst_buffer.folder={buffer}",
        "burst_buffer.drain=true", "burst_buffer.reserve_gb=0.001",
    )  # fmt: skip


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
