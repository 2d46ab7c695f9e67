"""The simulation stage with real processes: the same bits whoever makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_gen.generate import simulate
from stemdl.shards import read_manifest
from tests.small_ranks import finish_here, log_events
from tests.small_run import Recorder, content, small_config

pytestmark = pytest.mark.multiproc


def test_samples_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    """Three processes, and this one alone."""
    (tmp_path / "alone").mkdir()
    finish_here(tmp_path / "alone")
    config = small_config(tmp_path, "simulation.workers=3")
    progress = Recorder()
    summary = simulate(config, progress=progress)
    assert (summary.train_samples, summary.held_out_samples, summary.skipped) == (9, 5, False)
    assert summary.outcome.lost == []
    assert progress.done == sorted(progress.done)
    assert progress.done[-1] == 14
    ranks = {int(entry.file.split("-")[1]) for entry in read_manifest(config.run.folder / "shards" / "train")}
    assert ranks <= {0, 1, 2}
    assert [line["rank"] for line in log_events(config.run.folder, "start")] == [0, 1, 2]
    assert [line["signal"] for line in log_events(config.run.folder, "end")] == [0, 0, 0]
    assert content(config.run.folder) == content(tmp_path / "alone" / "run")
    assert simulate(config, progress=Recorder()).skipped
