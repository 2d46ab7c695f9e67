"""An mpirun killed with -9, all of it, three times at random moments: the set ends in the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.small_ranks import Job, finish_here, log_events, mpirun, sealed_items, simulate_arguments
from tests.small_run import content, make_shards, small_config

pytestmark = [pytest.mark.resume, pytest.mark.multiproc]

SIZE = ("simulation.samples=30", "held_out.samples=9", "simulation.samples_per_shard=2")


def test_a_job_that_is_killed_three_times_ends_in_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "reference").mkdir()
    whole = small_config(tmp_path / "reference", *SIZE)
    make_shards(whole)
    folder, rng = tmp_path / "run", np.random.default_rng(11)
    arguments = simulate_arguments(tmp_path, *SIZE)
    before: set[tuple[str, int]] = set()
    for _ in range(3):
        made = len(log_events(folder, "made"))
        with Job(mpirun(2, arguments)) as job:
            until = made + int(rng.integers(4, 9))
            job.wait_until(lambda until=until: len(log_events(folder, "made")) >= until)  # type: ignore[misc]
            job.kill_all()
        assert "Traceback" not in job.log
        assert ("of an earlier run ended without a word" in job.log) == (made > 0), job.log
        after = sealed_items(folder)
        assert before <= after, "what is sealed stays"
        before = after
    assert 0 < len(before) < 39, "it was killed in the middle"
    summary = finish_here(tmp_path, *SIZE)
    assert (summary.train_samples, summary.held_out_samples, summary.failed) == (30, 9, [])
    assert content(folder) == content(whole.run.folder)
    hidden = [path.name for path in (folder / "shards").rglob(".*") if path.is_file() and path.stat().st_size > 0]
    assert not hidden, "nothing of the dead is left but for locks of ranks that the last call did not have"
