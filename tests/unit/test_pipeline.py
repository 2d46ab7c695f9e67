from __future__ import annotations

import io
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fake_stages
from stemdl.config import Config
from stemdl.config.loader import load_config, save_config
from stemdl.errors import UserError
from stemdl.pipeline import PreflightError, run
from stemdl.run_folder import RunFolderError, differences, locked, prepare, record_stage
from stemdl.shards import ShardError
from stemdl.time_limit import TimeLimit

ROOT = Path(__file__).resolve().parents[2]
ALL = ["simulate", "train", "reconstruct", "report"]


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> fake_stages.FakeStages:
    return fake_stages.install(monkeypatch)


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=120)


def quickstart(folder: Path, *overrides: str) -> Config:
    text = json.dumps(str(folder))
    return load_config(ROOT / "configs" / "quickstart.yaml", [f"run.folder={text}", *overrides])


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_run_does_all_stages_in_order_and_leaves_its_records(
    tmp_path: Path, stages: fake_stages.FakeStages, console: Console
) -> None:
    folder = tmp_path / "a run"
    config = quickstart(folder)
    outcome = run(config, console)
    assert stages.done == ALL
    assert outcome.incomplete == []
    assert outcome.report == folder / "report" / "index.html"
    assert load_config(folder / "config.yaml") == config
    metrics = read(folder / "metrics.json")
    assert metrics["unseen"]["fields"] == 96
    assert list(metrics["seconds"]) == ALL
    assert all(seconds >= 0 for seconds in metrics["seconds"].values())
    assert read(folder / "versions.json")["stemdl"] == "0.1.0"
    lines = [line for line in printed(console).splitlines() if line.startswith(tuple(f"{name} " for name in ALL))]
    assert [line.split()[0] for line in lines] == ALL


def test_a_second_run_skips_what_is_complete(tmp_path: Path, stages: fake_stages.FakeStages, console: Console) -> None:
    config = quickstart(tmp_path)
    run(config, console)
    before = read(tmp_path / "metrics.json")
    stages.done.clear()
    outcome = run(config, console)
    assert stages.done == []
    assert outcome.metrics["unseen"]["fields"] == 96
    assert read(tmp_path / "metrics.json") == before, "a skipped stage keeps the time it took"
    assert printed(console).count("complete, skipped") == 4


def test_an_interrupted_stage_goes_on_and_the_time_of_both_attempts_counts(
    tmp_path: Path, stages: fake_stages.FakeStages, console: Console
) -> None:
    config = quickstart(tmp_path)
    stages.fail_in, stages.error = "train", KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(config, console)
    first = read(tmp_path / "stages.json")["train"]
    assert first["complete"] is False
    stages.fail_in = ""
    stages.done.clear()
    run(config, console)
    assert stages.done == ["train", "reconstruct", "report"]
    second = read(tmp_path / "stages.json")["train"]
    assert second["complete"] is True
    assert second["seconds"] >= first["seconds"]


def test_results_of_another_configuration_are_refused_with_the_keys(
    tmp_path: Path, stages: fake_stages.FakeStages, console: Console
) -> None:
    run(quickstart(tmp_path), console)
    stages.done.clear()
    with pytest.raises(RunFolderError) as refused:
        run(quickstart(tmp_path, "train.lr=1e-3", "simulation.workers=1", "report.fields_shown=2"), console)
    text = str(refused.value)
    assert "train.lr: 0.003 there, 0.001 now" in text
    assert "simulation.workers" not in text, "the number of processes changes no result"
    assert "To redo: train, reconstruct, report" in text
    assert "--set run.folder=" in text
    assert "keeps those of: simulate" in text
    assert stages.done == []
    assert load_config(tmp_path / "config.yaml").train.lr == pytest.approx(3e-3)


def test_fresh_moves_stale_results_aside_and_keeps_the_rest(
    tmp_path: Path, stages: fake_stages.FakeStages, console: Console
) -> None:
    run(quickstart(tmp_path), console)
    stages.done.clear()
    run(quickstart(tmp_path, "train.lr=1e-3"), console, fresh=True)
    assert stages.done == ["train", "reconstruct", "report"]
    old = tmp_path / "old-1"
    assert load_config(old / "config.yaml").train.lr == pytest.approx(3e-3)
    assert (old / "checkpoints" / "latest").is_file()
    assert (old / "metrics.json").is_file()
    assert (old / "report" / "index.html").is_file()
    assert not (old / "shards").exists()
    run(quickstart(tmp_path, "run.seed=7"), console, fresh=True)
    assert (tmp_path / "old-2" / "shards").is_dir()
    assert stages.done[3:] == ALL


def test_a_change_of_the_report_alone_is_redrawn_without_asking(
    tmp_path: Path, stages: fake_stages.FakeStages, console: Console
) -> None:
    run(quickstart(tmp_path), console)
    stages.done.clear()
    run(quickstart(tmp_path, "report.fields_shown=2", "simulation.workers=1"), console)
    assert stages.done == ["report"]
    assert not (tmp_path / "old-1").exists()


def test_results_without_a_readable_configuration_are_refused(
    tmp_path: Path, stages: fake_stages.FakeStages, console: Console
) -> None:
    (tmp_path / "shards").mkdir()
    with pytest.raises(RunFolderError, match=r"no config\.yaml"):
        run(quickstart(tmp_path), console)
    (tmp_path / "config.yaml").write_text("train: {lr: [}")
    with pytest.raises(RunFolderError, match="--fresh"):
        run(quickstart(tmp_path), console)
    run(quickstart(tmp_path), console, fresh=True)
    assert (tmp_path / "old-1" / "shards").is_dir()
    assert (tmp_path / "old-1" / "config.yaml").read_text() == "train: {lr: [}"


def test_what_is_missing_makes_a_run_incomplete_by_name(
    tmp_path: Path, stages: fake_stages.FakeStages, console: Console
) -> None:
    stages.missing_fields, stages.refused = 2, [("bad.cif", "no atoms")]
    outcome = run(quickstart(tmp_path, "simulation.samples=1200"), console)
    assert outcome.incomplete == ["simulate: 1198 of 1200 fields to train on"]
    assert "refused: bad.cif: no atoms" in printed(console)
    assert read(tmp_path / "stages.json")["simulate"]["complete"] is False


def test_one_stage_alone(tmp_path: Path, stages: fake_stages.FakeStages, console: Console) -> None:
    outcome = run(quickstart(tmp_path), console, stages=("simulate",))
    assert stages.done == ["simulate"]
    assert outcome.metrics == {}
    assert not (tmp_path / "metrics.json").exists()


def test_a_failed_preflight_starts_nothing(tmp_path: Path, stages: fake_stages.FakeStages, console: Console) -> None:
    stages.findings = [
        types.SimpleNamespace(severity="ok", check="dose"),
        types.SimpleNamespace(severity="warning", check="memory"),
    ]
    run(quickstart(tmp_path / "warned"), console, stages=("simulate",))
    assert "warning memory" in printed(console)
    assert "dose" not in printed(console)
    stages.findings.append(types.SimpleNamespace(severity="error", check="probe too wide"))
    with pytest.raises(PreflightError, match="probe too wide"):
        run(quickstart(tmp_path / "refused"), console)
    assert not (tmp_path / "refused").exists()


def test_a_second_process_is_told_who_holds_the_folder(
    tmp_path: Path, stages: fake_stages.FakeStages, console: Console
) -> None:
    code = (
        "import sys, pathlib\nfrom stemdl.run_folder import locked\n"
        "with locked(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError, match=rf"process {holder.pid} on .* is at work"):
            run(quickstart(tmp_path), console)
    finally:
        holder.communicate("", timeout=30)
    run(quickstart(tmp_path), console)
    assert stages.done == ALL


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with locked(tmp_path) as protected:
        assert protected is False


def test_a_folder_that_cannot_be_made_names_the_key(
    tmp_path: Path, stages: fake_stages.FakeStages, console: Console
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"run\.folder"):
        run(quickstart(tmp_path / "file" / "run"), console)


def test_differences_name_the_first_stage_they_reach(tmp_path: Path) -> None:
    before = quickstart(tmp_path)

    def stages_of(*overrides: str) -> list[tuple[str, str]]:
        return [(one.key, one.stages[0]) for one in differences(before, quickstart(tmp_path, *overrides))]

    assert stages_of("run.seed=1") == [("run.seed", "simulate")]
    assert stages_of("simulation.probe_chunk=4") == []
    assert stages_of("microscope.energy_kev=120.0") == [("microscope.energy_kev", "simulate")]
    assert stages_of("detector.dose_e_per_a2=1e4") == [("detector.dose_e_per_a2", "train")]  # drawn at load time
    assert stages_of("network.stages=3") == [("network.stages", "train")]
    assert stages_of("reconstruct.batch=8") == [("reconstruct.batch", "reconstruct")]
    assert differences(before, quickstart(tmp_path / "elsewhere")) == []
    other = differences(before, quickstart(tmp_path, "network={name: fc_densenet}"))
    assert ("network.name", '"scanfield"', '"fc_densenet"') in [(one.key, one.before, one.now) for one in other]


def test_a_changed_cif_file_is_named(tmp_path: Path, stages: fake_stages.FakeStages, console: Console) -> None:
    cifs = tmp_path / "cifs"
    cifs.mkdir()
    (cifs / "one.cif").write_text("data_one\n")
    config = quickstart(tmp_path / "run", f"crystals.cif_folders=['{cifs}']")
    (tmp_path / "run" / "shards").mkdir(parents=True)
    save_config(config, tmp_path / "run" / "config.yaml")
    record_stage(config, "simulate", seconds=1.0, complete=True)
    assert prepare(config, fresh=False) is None
    (cifs / "one.cif").write_text("data_other\n")
    with pytest.raises(RunFolderError, match=r"crystals\.cif_folders: CIF files as they were there"):
        prepare(config, fresh=False)


@pytest.mark.parametrize("damaged", ["{", "[]", '{"train": null}', '{"train": {"seconds": "1"}}'])
def test_a_damaged_record_of_times_is_said_and_begun_again(
    tmp_path: Path, stages: fake_stages.FakeStages, console: Console, damaged: str
) -> None:
    run(quickstart(tmp_path), console)
    (tmp_path / "stages.json").write_text(damaged)
    run(quickstart(tmp_path), console)
    assert "stages.json: damaged" in printed(console)
    assert (tmp_path / "stages-damaged.json").read_text() == damaged
    assert list(read(tmp_path / "stages.json")) == ALL


@pytest.mark.parametrize("name", ["shards", "checkpoints", "reconstructions", "report"])
def test_a_file_in_place_of_a_folder_is_said_before_work(
    tmp_path: Path, stages: fake_stages.FakeStages, console: Console, name: str
) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(RunFolderError, match=f"{name}: a file"):
        run(quickstart(tmp_path), console)
    assert stages.done == []


def test_a_page_that_is_cut_off_is_drawn_again(
    tmp_path: Path, stages: fake_stages.FakeStages, console: Console
) -> None:
    run(quickstart(tmp_path), console)
    for cut in ("", "<html><body>"):
        (tmp_path / "report" / "index.html").write_text(cut)
        stages.done.clear()
        run(quickstart(tmp_path), console)
        assert stages.done == ["report"]


def test_fresh_moves_no_checkpoint_without_a_training_set(
    tmp_path: Path, stages: fake_stages.FakeStages, console: Console
) -> None:
    run(quickstart(tmp_path), console)
    (tmp_path / "shards" / "manifest.jsonl").unlink()
    with pytest.raises(ShardError, match="no shard is sealed"):
        run(quickstart(tmp_path, "train.lr=1e-3"), console, stages=("train",), fresh=True)
    assert (tmp_path / "checkpoints").is_dir()
    assert not (tmp_path / "old-1").exists()


def test_a_folder_that_is_not_writable_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(RunFolderError, match="is not writable"), locked(tmp_path):
        pass


def test_several_ranks_are_refused_before_anything_is_done(
    tmp_path: Path, stages: fake_stages.FakeStages, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="2"):
        run(quickstart(tmp_path / "run"), console)
    assert stages.done == []
    assert not (tmp_path / "run").exists()


def test_out_of_time_nothing_further_is_begun(tmp_path: Path, stages: fake_stages.FakeStages, console: Console) -> None:
    stages.requeue, stages.missing_fields = True, 3
    limit = TimeLimit(1e9, "Slurm job 7", 60.0)
    outcome = run(quickstart(tmp_path), console, limit=limit)
    assert stages.done == ["simulate"]
    assert stages.limit is limit
    assert (outcome.requeue, outcome.incomplete) == (True, ["simulate: 2397 of 2400 fields to train on"])
    assert read(tmp_path / "stages.json")["simulate"]["complete"] is False
    stages.requeue, stages.missing_fields = False, 0
    (tmp_path / "shards" / "manifest.jsonl").unlink()
    assert not run(quickstart(tmp_path), console).requeue
    assert stages.done[1:] == ALL


def test_the_ranks_of_a_job_simulate_where_they_were_given(
    tmp_path: Path, stages: fake_stages.FakeStages, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    crew: Any = object()
    run(quickstart(tmp_path), console, stages=("simulate",), crew=crew)
    assert stages.crew is crew
