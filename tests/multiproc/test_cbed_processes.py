"""Files of the CBED layout written by several processes: the same as by one, and none half after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stemdl.shards.cbed_layout import CbedFile

pytestmark = pytest.mark.multiproc

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120
SETTINGS = (
    "crystals.include=[Al-fcc, Fe-bcc, MgO-rocksalt, Si-diamond]", "crystals.held_out_fraction=0.5",
    "scan.positions=[3, 3]", "scan.step_angstrom=4.0",
)  # fmt: skip


def command(folder: Path, workers: int, *more: str) -> list[str]:
    words = ["cbed", "write", str(ROOT / "configs" / "quickstart.yaml"), "-o", str(folder), "--workers", str(workers)]
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    options = ["--energies", "100,150", "--materials-per-file", "1"]
    return [sys.executable, "-m", "stemdl.cli", *words, *sets, *options, *more]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run(folder: Path, workers: int, *more: str) -> str:
    done = subprocess.run(
        command(folder, workers, *more),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def content(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(folder.glob("batch_*.h5")):
        with CbedFile(path) as file:
            for name in file.names:
                found[f"{path.name}/{name}"] = file.sample(name).cbed_stack.tobytes()
    return found


def test_two_processes_write_what_one_does_also_after_a_kill(tmp_path: Path) -> None:
    assert "wrote 4 files with 8 samples" in run(tmp_path / "one", 1)
    assert "wrote 4 files with 8 samples" in run(tmp_path / "two", 2)
    reference = content(tmp_path / "one")
    assert content(tmp_path / "two") == reference

    folder = tmp_path / "killed"
    process = subprocess.Popen(
        command(folder, 2), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    end = time.monotonic() + TIMEOUT_S
    while process.poll() is None and not list(folder.glob("batch_*.h5")) and time.monotonic() < end:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)  # the children too, as a node that dies
    output, _ = process.communicate(timeout=TIMEOUT_S)
    some = content(folder)
    assert some, output
    assert some.items() <= reference.items(), "what has its name is whole"
    assert "were there already" in run(folder, 2)
    assert content(folder) == reference
    assert not [name for name in os.listdir(folder) if name.startswith(".")]
