"""The fault campaign in its short form, in a process of its own: every kind of fault, and what must hold after it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture.faults import KINDS

pytestmark = [pytest.mark.resume, pytest.mark.multiproc]

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600.0


def test_every_kind_of_fault_is_survived() -> None:
    """In full it is `make torture`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.torture", "--short", "--seed", "1"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        log, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # it ends its processes and unmounts its disks
        pytest.fail(f"not done after {TIMEOUT_S:g} s:\n{process.communicate(timeout=60)[0]}")
    assert process.returncode == 0, log
    for kind in KINDS:
        row = re.search(rf"^{re.escape(kind.name)} +(\d+) +(\d+) +[\d.]+(  skipped: .+)?$", log, re.MULTILINE)
        assert row is not None, log
        if row[3] is None:
            assert int(row[1]) == int(row[2]) >= 1, log
