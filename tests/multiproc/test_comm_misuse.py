"""What trainers do to a model between steps: ranks keep the same bits, or are told; they never drift apart unsaid."""

from __future__ import annotations

import pytest

from tests.comm_jobs import Ranks

pytestmark = pytest.mark.multiproc
EQUAL = ("replace", "assign", "append", "release_told", "validate_alone", "copies", "keep_graph")
REFUSED = {
    "release_unseen": "call reducer.refresh() before the backward pass",
    "freeze_within": "between a backward pass and finish()",
    "late_accumulation": "a second gradient in one step",
    "used_up": "another hook has used it up",
    "closed": "the reducer is closed",
}


@pytest.mark.parametrize(("negotiation", "intra_node"), [("cached", "auto"), ("planned", "off")])
def test_ranks_never_drift_apart_in_silence(negotiation: str, intra_node: str) -> None:
    with Ranks(2, ["-m", "tests.comm_misuse_program", negotiation, intra_node]) as job:
        assert job.end() == [0, 0], job.log
        for process in job.processes:
            assert "DIFFERENT" not in process.log, job.log
            for name in EQUAL:
                assert f"{name}: equal" in process.log, job.log
            for name, why in REFUSED.items():
                assert any(line.startswith(f"{name}: refused") and why in line for line in process.lines), job.log
