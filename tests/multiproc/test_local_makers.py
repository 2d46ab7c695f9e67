"""Makers as processes of this machine: who dies, hangs or takes too long costs nobody else anything; a stop seals."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.small_ranks import (
    BLOCK_AFTER_SIX,
    Job,
    failed_items,
    finish_here,
    log_events,
    made_items,
    sealed_items,
    simulate_arguments,
    write_driver,
)
from tests.small_run import Arrays, content, make_shards, small_config

pytestmark = pytest.mark.multiproc


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    """The set as this process makes it, item after item."""
    config = small_config(tmp_path_factory.mktemp("reference"))
    make_shards(config)
    return content(config.run.folder)


BAD_DAY = """\
if key == ("train", 3) and first_time("killed"):
    os.kill(os.getpid(), signal.SIGKILL)
if key == ("train", 5):
    os.kill(os.getpid(), signal.SIGSEGV)
if key == ("train", 7):
    time.sleep(1000)
if key == ("held_out", 2) and first_time("stopped"):
    os.kill(os.getpid(), signal.SIGSTOP)
if key == ("held_out", 4):
    raise ZeroDivisionError("no way")
"""


def test_on_a_bad_day_everything_else_is_made_and_the_next_day_the_rest(tmp_path: Path, reference: Arrays) -> None:
    """One process is killed once, one item kills all of its own, one takes too long, one is stopped, one is a fault."""
    overrides = ("simulation.item_timeout_s=8", "simulation.rank_timeout_s=10", "simulation.workers=2")
    script = write_driver(tmp_path, BAD_DAY)
    with Job(simulate_arguments(tmp_path, *overrides, script=script)) as job:
        assert job.end() == 3, job.log
        assert job.pids == [], job.log
    assert re.search(r"rank \d was killed by signal 9 \(SIGKILL\).*; another process takes its place", job.log), job.log
    assert re.search(r"rank \d gave no sign of life for 1\d s; another process takes its place", job.log), job.log
    assert len(re.findall(r"rank \d was killed by signal 11 \(SIGSEGV\); another", job.log)) == 2, job.log
    assert re.search(r"failed: train items 5: cif:\S+: was under way in 2 processes that were lost", job.log), job.log
    assert re.search(r"failed: train items 7: cif:\S+: took longer than 8 s \(simulation\.item_timeout_s\)", job.log)
    assert re.search(r"failed: held_out items 4: cif:\S+: ZeroDivisionError: no way", job.log), job.log
    assert "the next call tries 3 of them again" in job.log
    assert "incomplete: simulate: 7 of 9 fields to train on" in job.log
    assert "incomplete: simulate: 4 of 5 held-out fields" in job.log
    config = small_config(tmp_path, *overrides)
    assert failed_items(config) == {("train", 5): "rank", ("train", 7): "time", ("held_out", 4): "fault"}
    assert len(sealed_items(config.run.folder)) == 11
    assert "no way" in str(log_events(config.run.folder, "traceback"))
    summary = finish_here(tmp_path, *overrides)
    assert (summary.train_samples, summary.held_out_samples, summary.failed) == (9, 5, [])
    assert content(config.run.folder) == reference
    assert not [path for path in (config.run.folder / "shards").rglob(".*") if path.is_file()]


def test_makers_end_with_their_parent_in_the_middle_of_an_item(tmp_path: Path, reference: Arrays) -> None:
    """Else they would be writers of the ranks that the next call wants to have."""
    with Job(simulate_arguments(tmp_path, script=write_driver(tmp_path, BLOCK_AFTER_SIX))) as job:
        job.wait_until(lambda: job.lines.count("blocked") == 2)
        assert len(job.pids) > 2
        job.kill_alone()
        job.nobody_is_left()
    assert len(sealed_items(tmp_path / "run")) >= 2
    finish_here(tmp_path)
    assert content(tmp_path / "run") == reference


SHORT_GRACE = "import data_gen.sharing.drive\ndata_gen.sharing.drive.SIGNAL_GRACE_S = 0.5"


@pytest.mark.parametrize(
    ("which", "code", "said"),
    [
        (signal.SIGUSR2, 85, "out of time: run the same command again to go on"),
        (signal.SIGTERM, 143, "ended by SIGTERM: what is complete is kept"),
        (signal.SIGINT, 130, "interrupted: what is complete is kept"),
    ],
)
def test_a_signal_ends_all_and_what_was_made_is_sealed(
    tmp_path: Path, reference: Arrays, which: signal.Signals, code: int, said: str
) -> None:
    """To the parent alone, as a scheduler does; Ctrl-C goes to every process of the terminal."""
    overrides = ("simulation.samples_per_shard=50",)
    script = write_driver(tmp_path, BLOCK_AFTER_SIX, SHORT_GRACE)
    with Job(simulate_arguments(tmp_path, *overrides, script=script)) as job:
        job.wait_until(lambda: job.lines.count("blocked") == 2)
        assert sealed_items(tmp_path / "run") == set()
        if which == signal.SIGINT:
            job.signal_group(which)
        else:
            job.popen.send_signal(which)
        assert job.end() == code, job.log
        assert job.pids == [], job.log
    assert job.log.count(said) == 1, job.log
    assert "Traceback" not in job.log
    made = made_items(tmp_path / "run")
    assert len(made) == 6
    assert sealed_items(tmp_path / "run") == made
    assert len(log_events(tmp_path / "run", "end")) == 2
    if which == signal.SIGUSR2:
        finish_here(tmp_path, *overrides)
        assert content(tmp_path / "run") == reference


def test_the_end_of_the_time_seals_what_is_made_and_the_next_call_goes_on(tmp_path: Path, reference: Arrays) -> None:
    arguments = simulate_arguments(tmp_path, script=write_driver(tmp_path, BLOCK_AFTER_SIX))
    with Job([*arguments, "--time-limit", "14s"]) as job:
        assert job.end() == 85, job.log
        assert job.pids == [], job.log
    assert "time is up (--time-limit 14s)" in job.log
    assert "incomplete: simulate:" in job.log
    assert sealed_items(tmp_path / "run") == made_items(tmp_path / "run")
    finish_here(tmp_path)
    assert content(tmp_path / "run") == reference
