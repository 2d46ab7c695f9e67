from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

import stemdl

ROOT = Path(__file__).resolve().parents[2]
MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 50


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def normal(requirement: str) -> str:
    """A distribution's name as pip compares it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~;\[ ]", requirement)[0]).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {normal(line): line for line in lines if line and not line.startswith("#")}


def python_files() -> list[Path]:
    return sorted(path for folder in ("stemdl", "data_gen", "tests") for path in (ROOT / folder).rglob("*.py"))


def test_constraints_pin_every_dependency_exactly(project: dict[str, Any]) -> None:
    wanted = list(project["project"]["dependencies"])
    for extra in project["project"]["optional-dependencies"].values():
        wanted += extra
    missing = [name for name in map(normal, wanted) if name not in pins()]
    assert missing == []
    assert pins()["torch"] == "torch==2.13.0"
    inexact = [line for line in pins().values() if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line)]
    assert inexact == [], "a local version such as +cpu, or a range, resolves on some machines alone"


def test_nothing_names_an_index_or_a_host() -> None:
    for name in ("constraints.txt", "pyproject.toml", "Makefile", ".ci/run"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"https?://|file://|index-url|find-links|trusted-host", text), name


def test_extras_command_and_version(project: dict[str, Any]) -> None:
    assert set(project["project"]["optional-dependencies"]) == {"mpi", "io", "tune", "graph", "dev"}
    assert project["project"]["scripts"] == {"stemdl": "stemdl.cli:main"}
    assert project["project"]["license"] == "GPL-3.0-or-later"
    assert "GNU GENERAL PUBLIC LICENSE" in (ROOT / "LICENSE").read_text(encoding="utf-8")[:200]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {stemdl.__version__}" in changelog


def test_every_part_has_its_place_in_the_layers(project: dict[str, Any]) -> None:
    layers = next(c for c in project["tool"]["importlinter"]["contracts"] if c["id"] == "layers")["layers"]
    placed = set(re.findall(r"[\w.]+", " ".join(layers)))
    parts = {
        f"stemdl.{path.stem}"
        for path in (ROOT / "stemdl").iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").is_file()
    }
    assert parts - placed == set()


def test_packages_say_that_they_are_typed() -> None:
    assert (ROOT / "stemdl" / "py.typed").is_file()
    assert (ROOT / "data_gen" / "py.typed").is_file()


def test_files_and_functions_stay_small() -> None:
    long = []
    for path in python_files():
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > MAX_FILE_LINES:
            long.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long.append(f"{path.relative_to(ROOT)}: {node.name} has {lines} lines")
    assert long == []


def test_the_readme_stays_short() -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8").count("\n") <= 200


FAKE_PYTHON = """\
#!/usr/bin/env bash
# Stands in for python: notes its arguments, and makes a .venv whose python is itself.
echo "$*" >> "$CALLS"
case "$*" in
  *version_info*) [[ -z "${OLD:-}" ]] ;;
  --version) echo "Python ${OLD:-3.11.9}" ;;
  "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  *"pip "*install*) [[ -z "${BROKEN:-}" ]] ;;
esac
"""


class Clone:
    """A copy of what the Makefile needs, in a folder with a space in its name, with a stand-in for python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder / name)
        self.python = folder / "a python"
        self.python.write_text(FAKE_PYTHON)
        self.python.chmod(0o755)

    def make(self, *arguments: str, **environment: str) -> tuple[int, list[str], str]:
        """Exit code, the stand-in's calls, all output."""
        calls = self.folder / "calls"
        calls.write_text("")
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "CALLS": str(calls), **environment}
        done = subprocess.run(
            ["make", f"PYTHON={self.python}", *arguments],
            cwd=self.folder, env=env, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.returncode, calls.read_text().splitlines(), done.stdout + done.stderr


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    return Clone(tmp_path / "a clone")


def made(calls: list[str]) -> tuple[bool, list[str]]:
    """Was .venv made anew, and what was installed."""
    return "-m venv .venv" in calls, [call.split()[-1] for call in calls if " install " in call]


def test_make_installs_once_and_again_when_the_pins_change(clone: Clone) -> None:
    code, calls, output = clone.make("install")
    assert code == 0, output
    assert made(calls) == (True, ["."])
    assert made(clone.make("install")[1]) == (False, [])
    assert made(clone.make("dev")[1]) == (False, [".[dev,mpi]"])
    assert made(clone.make("dev", "install")[1]) == (False, [])
    (clone.folder / "constraints.txt").touch()
    assert made(clone.make("install")[1]) == (False, ["."])


def test_a_half_made_or_moved_venv_is_made_anew(clone: Clone) -> None:
    code, calls, _ = clone.make("install", BROKEN="1")
    assert code != 0
    assert made(calls)[0]
    assert made(clone.make("install")[1]) == (True, ["."])
    (clone.folder / ".venv" / "made-in").write_text("/somewhere/else\n")
    assert made(clone.make("install")[1]) == (True, ["."])
    (clone.folder / ".venv" / "bin" / "python").unlink()
    assert made(clone.make("install")[1]) == (True, ["."])


def test_an_old_or_missing_python_gives_one_clear_error(clone: Clone) -> None:
    code, calls, output = clone.make("install", OLD="3.9.2")
    assert code != 0
    assert made(calls) == (False, [])
    assert "is Python 3.9.2. stemdl needs Python 3.11 or newer" in output
    clone.python.unlink()
    code, _, output = clone.make("install")
    assert code != 0
    assert "there is no" in output
    assert not (clone.folder / ".venv").exists()


def test_help_names_every_target(clone: Clone) -> None:
    code, calls, output = clone.make("help")
    assert code == 0
    for target in ("install", "demo", "test", "lint", "types", "clean"):
        assert f"make {target} " in output
    assert made(calls) == (False, [])
