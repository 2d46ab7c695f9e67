"""A path that cannot be is the user's to mend: one line with the path and its option or key, exit code 2."""

from __future__ import annotations

import argparse
import errno
import os
from pathlib import Path

import pytest

from shard_cases import write
from stemdl.cli import main
from stemdl.cli_arguments import check_output_file, given_path, make_output_folder
from stemdl.errors import UserError
from test_cbed_layout import as_the_database
from tests.small_run import small_config

LONG = "x" * 300


def _one_line(capsys: pytest.CaptureFixture[str], *wanted: str) -> None:
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "fault of stemdl" not in said
    assert len([line for line in said.splitlines() if line.strip()]) == 1, said
    for text in wanted:
        assert text in said


@pytest.mark.parametrize("output", ["missing/a.png", "/proc/a.png", f"{LONG}.png", "file/a.png", "folder.png"])
def test_a_picture_path_is_checked_before_the_work(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "shards", [0])
    as_the_database(tmp_path / "a.h5", pixels=16)
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()
    monkeypatch.chdir(tmp_path)
    for command in (("shards", "show", "shards"), ("cbed", "show", "a.h5")):
        assert main([*command, "-o", output]) == 2
        _one_line(capsys, f"-o {output}: ")


@pytest.mark.parametrize("output", ["file", "/proc/x", LONG, "file/below"])
def test_a_folder_for_results_that_cannot_be(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_config(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["cbed", "write", "config.yaml", "-o", output]) == 2
    _one_line(capsys, f"-o {output}: ")


@pytest.mark.parametrize("verb", ["validate", "simulate"])
def test_a_key_whose_folder_has_too_long_a_name(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    for key, value in (("run.folder", LONG), ("crystals.cif_folders", f"[{LONG}]")):
        assert main([verb, "config.yaml", "--set", f"{key}={value}"]) == 2
        _one_line(capsys, key, LONG, "File name too long")


def test_only_paths_that_were_given_are_the_users_to_mend(tmp_path: Path) -> None:
    arguments = argparse.Namespace(output=tmp_path / "a" / "b", sources=[tmp_path / "s"], number=3)

    def said(number: int, path: Path) -> str:
        return given_path(arguments, OSError(number, os.strerror(number), str(path)))

    assert said(errno.ENOENT, tmp_path / "a" / "b") == "-o"
    assert said(errno.ENOTDIR, tmp_path / "a") == "-o"
    assert said(errno.ENOENT, tmp_path / "a" / "b" / "below") == "-o"
    assert said(errno.ENAMETOOLONG, tmp_path / "s") == "SRC"
    assert said(errno.ENOENT, tmp_path / "other") == ""
    assert said(errno.EIO, tmp_path / "a" / "b") == ""
    assert given_path(arguments, OSError("no number")) == ""
    (tmp_path / "s").mkdir()
    assert said(errno.ENOENT, tmp_path / "s" / "ours") == "", (
        "what is missing inside a folder that is there is our doing"
    )


def test_the_checks_leave_nothing(tmp_path: Path) -> None:
    check_output_file(None, "-o")
    check_output_file(tmp_path / "a.png", "-o")
    assert not list(tmp_path.iterdir())
    make_output_folder(tmp_path / "a" / "b", "-o")
    assert not list((tmp_path / "a" / "b").iterdir())
    with pytest.raises(UserError, match="a folder; give the name of a file in it"):
        check_output_file(tmp_path / "a", "-o")
