"""The whole chain from the command line: complete, skipped, killed in every stage, interrupted, incomplete."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.small_run import CONFIG, ROOT, Process, write_cif, write_crystals

pytestmark = [pytest.mark.multiproc, pytest.mark.resume]

SMALLER = (
    "simulation.samples=12",
    "simulation.samples_per_shard=2",
    "held_out.samples=3",
    "train.steps=3",
    "train.threads=1",
    "report.fields_shown=2",
)
STAGES = ("simulate", "train", "reconstruct", "report")


def stemdl(verb: str, file: Path, folder: Path, *overrides: str) -> Process:
    """`python -m stemdl.cli VERB FILE --set run.folder=FOLDER ...`."""
    settings = [argument for key in (f"run.folder={folder}", *overrides) for argument in ("--set", key)]
    return Process(["-m", "stemdl.cli", verb, file, *settings], timeout_s=170.0)


def smoke(folder: Path) -> Process:
    return stemdl("run", ROOT / "configs" / "smoke.yaml", folder, *SMALLER)


def results(folder: Path) -> dict[str, Any]:
    """What a run found, without how long it took."""
    found: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_bytes()
        for pattern in ("reconstructions/*", "checkpoints/*/weights.pt", "checkpoints/latest")
        for path in folder.glob(pattern)
    }
    metrics = json.loads((folder / "metrics.json").read_text())
    assert list(metrics.pop("seconds")) == list(STAGES)
    return {**found, "metrics.json": json.dumps(metrics)}


def check_complete(process: Process, folder: Path, *, was_killed: bool = False) -> None:
    assert process.end() == 0, process.log
    assert f"report: {folder / 'report' / 'index.html'}" in process.log
    page = (folder / "report" / "index.html").read_text()
    assert page.count("<img") + page.count("<svg") >= 3
    for stage in STAGES:
        assert any(line.startswith(f"{stage} ") for line in process.lines), process.log
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["unseen"]["fields"] == 3
    for name in ("pearson_r", "nrmse", "ssim", "frc"):
        assert np.isfinite(metrics["unseen"][name]["median"])
    assert (len(metrics["baselines"]), len(metrics["physics_alone"])) == (3, 1)
    for figures in metrics["baselines"].values():
        assert np.isfinite([figures["pearson_r"]["median"], figures["nrmse"]["median"]]).all()
    assert list(metrics["seconds"]) == list(STAGES)
    # A run that is killed between a stage's result and its record does not know how long the stage took.
    assert all(seconds > 0 or (was_killed and seconds == 0) for seconds in metrics["seconds"].values())


def killed_in_every_stage(folder: Path) -> Process:
    """Interrupted, then killed again and again, each time a stage later; returns the run that ends it."""
    shards = folder / "shards" / "train"

    interrupted = smoke(folder)
    interrupted.wait_for(lambda line: line.startswith("simulate: 15 fields"))
    interrupted.signal_group(signal.SIGINT)
    assert interrupted.end() == 130, interrupted.log
    assert "interrupted: what is complete is kept; run the same command again to go on" in interrupted.log
    assert "Traceback" not in interrupted.log, interrupted.log

    in_simulate = smoke(folder)
    in_simulate.wait_until(lambda: (shards / "manifest.jsonl").exists())
    in_simulate.kill_alone()
    assert in_simulate.end() == -signal.SIGKILL, in_simulate.log
    assert not (folder / "checkpoints").exists()

    for said, delay_s in (("train stage 2: 3 steps", 0.1), ("reconstruct: 6 passes", 0.05), ("reconstruct  ", 0.3)):
        process = smoke(folder)
        process.wait_for(lambda line, said=said: line.startswith(said))  # type: ignore[misc]
        time.sleep(delay_s)
        process.kill_alone()
        assert process.end() == -signal.SIGKILL, process.log
    return smoke(folder)


def test_a_run_ends_in_the_same_bits_however_often_it_is_killed(tmp_path: Path) -> None:
    quiet, disturbed = tmp_path / "quiet run", tmp_path / "disturbed"
    undisturbed = smoke(quiet)  # beside the other one: two processes for two cores
    last = killed_in_every_stage(disturbed)
    check_complete(undisturbed, quiet)
    expected = results(quiet)

    again = smoke(quiet)
    check_complete(last, disturbed, was_killed=True)
    assert "simulate     12 + 3 fields                                complete, skipped" in last.log
    found = results(disturbed)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []

    files = {path: path.stat().st_mtime_ns for path in quiet.rglob("*.*") if path.suffix in (".h5", ".emd", ".pt")}
    assert again.end() == 0, again.log
    assert again.log.count("complete, skipped") == 4, again.log
    assert results(quiet) == expected
    assert all(path.stat().st_mtime_ns == written for path, written in files.items())


def test_items_that_cannot_be_made_end_with_code_3_and_are_named(tmp_path: Path) -> None:
    write_crystals(tmp_path / "cif")
    write_cif(tmp_path / "cif", "slab", [3.0, 3.0, 3e5], [("Mg", 0.0, 0.0, 0.0)])
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    run = tmp_path / "run"
    overrides = ["specimen.zone_axes=[[0, 0, 1]]", "specimen.tilt_mrad=0.0"]
    process = stemdl("simulate", file, run, *overrides)
    assert process.end() == 3, process.log
    failed = json.loads((run / "shards" / "failed.json").read_text())["failed"]
    assert {one["crystal"] for one in failed} == {"cif:slab"}
    assert f"failed: {len(failed)} items in all, listed in {run / 'shards' / 'failed.json'}" in process.log
    assert "cif:slab: no atom lies in the box" in process.log
    part = {"train": "fields to train on", "held_out": "held-out fields"}[failed[0]["part"]]
    wanted = {"train": 9, "held_out": 5}[failed[0]["part"]]
    assert f"incomplete: simulate: {wanted - len(failed)} of {wanted} {part}" in process.log
