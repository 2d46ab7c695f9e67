from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

import fake_stages
from stemdl import __version__
from stemdl.cli import build_parser, main
from stemdl.shards.schema import SCHEMA_VERSION, ShardError

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "configs" / "quickstart.yaml"
VERBS = (
    "run", "simulate", "train", "report", "validate", "doctor", "model", "model describe", "bench", "bench simulate",
    "shards", "shards list", "shards verify", "shards show", "shards merge", "shards repair",
    "cbed", "cbed write", "cbed list", "cbed show",
)  # fmt: skip


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> fake_stages.FakeStages:
    return fake_stages.install(monkeypatch)


def arguments(verb: str, folder: Path, *more: str) -> list[str]:
    return [verb, str(QUICKSTART), "--set", f"run.folder={json.dumps(str(folder))}", *more]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example_that_parses(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([*verb.split(), "--help"])
    assert left.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    example = re.search(r"example: stemdl (.*)$", text)
    assert example is not None
    parsed = build_parser().parse_args(example[1].split())
    assert parsed.module.startswith("stemdl.cli")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom stemdl.cli import main\n"
        "try:\n    main(['run', '--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted(set(sys.modules) & {'torch', 'numpy', 'h5py', 'abtem', 'ase', 'pydantic', 'rich', 'yaml'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"stemdl {__version__}\n"


@pytest.mark.parametrize(
    "wrong", [[], ["nonsense"], ["run"], ["run", "f", "--se", "a=1"], ["validate", "f", "--ranks", "0"]]
)
def test_a_wrong_command_line_ends_with_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(wrong)
    assert left.value.code == 2
    assert "usage: stemdl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["run", "no/such/file.yaml"], "no such file"),
        (["run", str(QUICKSTART), "--set", "train.lrr=1"], "train.lr"),
        (["train", str(QUICKSTART), "--set", "train.steps=many"], "train.steps"),
        (["report", "no/such/folder"], "config.yaml"),
        (["shards", "list", "no/such/folder"], "no such folder"),
        (["shards", "verify", str(ROOT / "configs")], "manifest.jsonl"),
        (["doctor", "--folder", "no/such/folder"], "no such folder"),
    ],
)
def test_a_users_mistake_ends_with_2_and_no_traceback(
    wrong: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(wrong) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert "Traceback" not in captured.err


def test_run_prints_the_metrics_and_the_report(
    tmp_path: Path, stages: fake_stages.FakeStages, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments("run", tmp_path)) == 0
    out = capsys.readouterr().out
    assert re.search(r"network\W+0\.980\W+0\.250", out)
    assert re.search(r"back_projection\W+0\.920\W+0\.500", out)
    assert f"report: {tmp_path / 'report' / 'index.html'}" in out


def test_an_incomplete_run_ends_with_3_and_names_what_is_missing(
    tmp_path: Path, stages: fake_stages.FakeStages, capsys: pytest.CaptureFixture[str]
) -> None:
    stages.missing_fields = 5
    assert main(arguments("run", tmp_path)) == 3
    assert "incomplete: simulate: 2395 of 2400 fields" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["run", "simulate"])
def test_out_of_time_ends_with_85_and_what_to_do(
    tmp_path: Path, stages: fake_stages.FakeStages, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    stages.requeue, stages.missing_fields = True, 5
    assert main(arguments(verb, tmp_path, "--time-limit", "2h")) == 85
    out = capsys.readouterr().out
    assert "incomplete: simulate: 2395 of 2400 fields" in out
    assert "out of time: run the same command again to go on" in out
    assert stages.done == ["simulate"]
    assert stages.limit is not None
    assert stages.limit.source == "--time-limit 2h"


def test_a_time_limit_that_is_none_ends_with_2_before_any_work(
    tmp_path: Path, stages: fake_stages.FakeStages, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments("simulate", tmp_path, "--time-limit", "90")) == 2
    assert "time limit '90': allowed are 90s, 45m, 2h" in capsys.readouterr().err
    assert stages.done == []


def test_stages_alone_and_the_report_of_a_moved_folder(
    tmp_path: Path, stages: fake_stages.FakeStages, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments("simulate", tmp_path / "run")) == 0
    assert main(arguments("train", tmp_path / "run")) == 0
    assert stages.done == ["simulate", "train"]
    (tmp_path / "run").rename(tmp_path / 'moved "here"')
    capsys.readouterr()
    assert main(["report", str(tmp_path / 'moved "here"')]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / 'moved "here"' / "report" / "index.html")
    assert (tmp_path / 'moved "here"' / "report" / "index.html").is_file()


def test_another_configuration_needs_fresh(
    tmp_path: Path, stages: fake_stages.FakeStages, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments("run", tmp_path)) == 0
    assert main(arguments("run", tmp_path, "--set", "train.lr=1e-3")) == 2
    assert "train.lr" in capsys.readouterr().err
    assert main(arguments("run", tmp_path, "--set", "train.lr=1e-3", "--fresh")) == 0
    assert (tmp_path / "old-1" / "checkpoints").is_dir()


def test_our_fault_ends_with_1_and_keeps_the_traceback(
    tmp_path: Path, stages: fake_stages.FakeStages, capsys: pytest.CaptureFixture[str]
) -> None:
    stages.fail_in, stages.error = "train", ZeroDivisionError("no steps")
    assert main(arguments("run", tmp_path)) == 1
    err = capsys.readouterr().err
    (kept,) = (tmp_path / "log").glob("failure-*.txt")
    assert "ZeroDivisionError: no steps" in kept.read_text()
    assert "Traceback" in kept.read_text()
    assert str(kept) in err
    assert "report it" in err
    assert "Traceback" not in err


def test_our_fault_without_a_run_folder_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise AssertionError("no such number of cores")

    monkeypatch.setattr("stemdl.doctor.examine", broken)
    assert main(["doctor"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "run the same command again"),
        (ShardError("shard-00000-00001.h5: truncated"), 2, "shard-00000-00001.h5: truncated"),
        (OSError(28, "No space left on device", "shard"), 2, "No space left on device: 'shard'"),
        (OSError(28, "No space left on device"), 2, "run: [Errno 28] No space left on device"),
        (OSError(5, "Input/output error"), 1, "fault of stemdl"),
    ],
)
def test_what_a_stage_raises_decides_the_exit_code(
    tmp_path: Path,
    stages: fake_stages.FakeStages,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    said: str,
) -> None:
    stages.fail_in, stages.error = "simulate", error
    assert main(arguments("run", tmp_path / "run")) == code
    assert said in capsys.readouterr().err


def test_validate_shows_findings_and_fails_on_errors(
    stages: fake_stages.FakeStages, capsys: pytest.CaptureFixture[str]
) -> None:
    stages.findings = [types.SimpleNamespace(severity="ok", check="sampling")]
    assert main(["validate", str(QUICKSTART), "--ranks", "2"]) == 0
    assert "ok sampling" in capsys.readouterr().out
    stages.findings.append(types.SimpleNamespace(severity="error", check="probe"))
    assert main(["validate", str(QUICKSTART)]) == 2
    captured = capsys.readouterr()
    assert "error probe" in captured.out
    assert "1 of 2 checks failed" in captured.err


def test_doctor_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "doctor.json"
    assert main(["doctor", "--folder", str(tmp_path), "--json", str(target)]) == 0
    assert json.loads(target.read_text())["cpu"]["usable_cores"] >= 1
    assert "→" in capsys.readouterr().out
    assert main(["doctor", "--json", str(tmp_path / "none" / "doctor.json")]) == 2


def test_bench_prints_and_writes_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = types.ModuleType("stemdl.bench.simulate")
    figures = types.SimpleNamespace(as_dict=lambda: {"engines": {}})
    bench.__dict__.update(bench_simulate=lambda config, **_: figures, format_bench=lambda _: "two engines")
    monkeypatch.setitem(sys.modules, "stemdl.bench.simulate", bench)
    target = tmp_path / "figures.json"
    assert main(["bench", "simulate", str(QUICKSTART), "--json", str(target)]) == 0
    assert json.loads(target.read_text()) == {"engines": {}}
    assert capsys.readouterr().out == "two engines\n"


def test_model_describe_prints_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "model.json"
    assert main(["model", "describe", str(QUICKSTART), "--json", str(target)]) == 0
    figures = json.loads(target.read_text())
    assert figures["weights"] > 0
    assert figures["train_flop_per_sample"] > 0
    assert "scanfield" in capsys.readouterr().out


def test_shards_are_listed_and_damage_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from stemdl.shards.manifest import ManifestEntry, append_entry

    folder = tmp_path / "shards" / "train"
    folder.mkdir(parents=True)
    append_entry(folder, ManifestEntry("shard-00000-00000.h5", "0" * 64, 4, 2, [0, 1], "f" * 64, SCHEMA_VERSION))
    (folder / "shard-00000-00000.h5").write_bytes(b"four")
    target = tmp_path / "list.json"
    assert main(["shards", "list", str(tmp_path / "shards"), "--json", str(target)]) == 0
    assert "1 shards, 2 samples" in capsys.readouterr().out
    assert json.loads(target.read_text())["folders"][str(folder)][0]["count"] == 2
    assert main(["shards", "verify", str(folder), "--json", str(target)]) == 2
    assert "sha256 differs" in capsys.readouterr().err
    assert "sha256 differs" in json.loads(target.read_text())["folders"][str(folder)]


def test_a_reader_that_leaves_early_is_no_fault() -> None:
    code = (
        "import sys\nimport stemdl.doctor as doctor\nfrom stemdl.cli import main\n"
        "doctor.examine = lambda _: [doctor.Answer('cpu', {}, [doctor.Line('ok', 'fact', 'follows')] * 9999)]\n"
        "sys.exit(main(['doctor']))"
    )
    done = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert done.stdout is not None
    assert done.stderr is not None
    done.stdout.close()
    with done.stderr:
        err = done.stderr.read()
    assert done.wait(timeout=60) == 141, err
    assert err == ""


def test_the_file_of_the_user_in_the_run_folder_is_never_overwritten(
    tmp_path: Path, stages: fake_stages.FakeStages, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    text = re.sub(r"folder: \S+", "folder: .  # here", QUICKSTART.read_text(), count=1)
    assert "# here" in text
    file.write_text(text)
    assert main(["simulate", str(file), "--set", "simulation.samples=4"]) == 2
    err = capsys.readouterr().err
    assert "--set (simulation.samples=4)" in err
    assert str(file) in err
    assert stages.done == []
    assert main(["simulate", str(file)]) == 0
    assert file.read_text() == text, "the same configuration is not written again: comments stay"


def test_sigterm_keeps_what_is_complete_and_ends_with_143(
    tmp_path: Path, stages: fake_stages.FakeStages, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal came too late")

    monkeypatch.setattr(sys.modules["stemdl.train.loop"], "train", train)
    before = signal.getsignal(signal.SIGTERM)
    assert main(arguments("run", tmp_path)) == 143
    assert "what is complete is kept" in capsys.readouterr().err
    records = json.loads((tmp_path / "stages.json").read_text())
    assert (records["simulate"]["complete"], records["train"]["complete"]) == (True, False)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_run_whose_reader_has_gone_is_not_done(tmp_path: Path) -> None:
    code = (
        "import sys, pytest, fake_stages\nfrom stemdl.cli import main\n"
        "fake_stages.install(pytest.MonkeyPatch())\n"
        f"sys.exit(main({arguments('run', tmp_path)!r}))"
    )
    done = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'unit'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.stdout is not None
    assert done.stderr is not None
    done.stdout.close()
    with done.stderr:
        err = done.stderr.read()
    assert done.wait(timeout=60) == 141, err
    assert err == ""
