"""What a hash of the configuration says of the crystals: the content of the CIF files, wherever they lie."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_gen.materials import read_cif_folder
from field_cases import small_config
from stemdl.atomic_files import sha256_file
from stemdl.config import STAGE_SECTIONS, Config, config_hash, load_config, save_config, stage_hash

AL = """data_Al
_cell_length_a 4.05
_cell_length_b 4.05
_cell_length_c 4.05
_cell_angle_alpha 90
_cell_angle_beta 90
_cell_angle_gamma 90
loop_
_atom_site_label
_atom_site_fract_x
_atom_site_fract_y
_atom_site_fract_z
Al 0 0 0
"""


def with_folders(*folders: Path, **changes: Any) -> Config:
    return small_config(crystals__cif_folders=folders, **changes)


def digest(*folders: Path) -> str:
    return stage_hash(with_folders(*folders), "simulate")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "clone" / "crystals"
    folder.mkdir(parents=True)
    (folder / "b.cif").write_text(AL)
    (folder / "a.CIF").write_text(AL.replace("4.05", "4.10"))
    (folder / "notes.txt").write_text("of no weight")
    return folder


def add_another(folder: Path) -> None:
    (folder / "c.cif").write_text(AL)


def change_a_digit(folder: Path) -> None:
    (folder / "b.cif").write_text(AL.replace("4.05", "4.06", 1))


def rename(folder: Path) -> None:
    (folder / "b.cif").rename(folder / "z.cif")  # the crystal's name, "cif:b", is that of the file


def exchange(folder: Path) -> None:
    one, other = (folder / "a.CIF").read_text(), (folder / "b.cif").read_text()
    (folder / "a.CIF").write_text(other)
    (folder / "b.cif").write_text(one)


@pytest.mark.parametrize("change", [add_another, change_a_digit, rename, exchange])
def test_a_change_of_the_crystals_changes_every_stage(folder: Path, change: Callable[[Path], None]) -> None:
    config = with_folders(folder)
    before = {stage: stage_hash(config, stage) for stage in STAGE_SECTIONS}
    change(folder)
    assert all(stage_hash(config, stage) != before[stage] for stage in STAGE_SECTIONS)
    assert config_hash(config, ("scan", "train")) == config_hash(small_config(), ("scan", "train"))


def test_a_clone_that_moved_keeps_its_results(folder: Path, tmp_path: Path) -> None:
    before = digest(folder)
    moved = tmp_path / "elsewhere" / "with another name"
    shutil.copytree(folder, moved, copy_function=shutil.copyfile)  # other times of change as well
    shutil.rmtree(folder)
    assert digest(moved) == before


def test_what_the_simulation_does_not_read_has_no_weight(folder: Path) -> None:
    before = digest(folder)
    (folder / "notes.txt").write_text("changed")
    (folder / "deeper").mkdir()
    (folder / "deeper" / "d.cif").write_text(AL)
    assert digest(folder) == before


def test_the_files_that_count_are_those_that_are_read(folder: Path) -> None:
    crystals, refused = read_cif_folder(folder)
    assert (len(crystals), len(refused)) == (2, 0)
    hashes = set()
    for path in sorted(folder.iterdir()):
        hidden = path.rename(path.with_suffix(".hidden"))
        hashes.add(digest(folder))
        hidden.rename(path)
    assert len(hashes) == 3  # without a.CIF, without b.cif, and the whole


def test_the_order_of_folders_counts_and_so_does_which_holds_a_file(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    add_another(other)
    assert digest(folder, other) != digest(other, folder)
    together = digest(folder, other)
    (other / "c.cif").rename(folder / "c.cif")
    assert digest(folder, other) != together


def test_a_missing_folder_has_a_stable_hash_by_its_name(folder: Path, tmp_path: Path) -> None:
    missing = tmp_path / "one" / "gone"
    assert digest(missing) == digest(missing)
    assert digest(missing) == digest(tmp_path / "two" / "gone")
    assert len({digest(missing), digest(tmp_path / "other"), digest(folder), digest()}) == 4
    empty = tmp_path / "empty"
    empty.mkdir()
    assert digest(empty) not in {digest(missing), digest(tmp_path / "one" / "empty"), digest()}


def test_a_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert digest(tmp_path / "file") == digest(tmp_path / "elsewhere" / "file")


def test_what_is_no_file_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(folder)

    def read(path: Path) -> str:
        assert path.is_file(), f"{path} would be read for ever"
        return sha256_file(path)

    monkeypatch.setattr("stemdl.config.hashing.sha256_file", read)
    os.mkfifo(folder / "pipe.cif")
    with_pipe = digest(folder)
    assert with_pipe != before
    (folder / "pipe.cif").unlink()
    (folder / "pipe.cif").symlink_to(folder / "nowhere")
    assert digest(folder) == with_pipe


def test_a_file_that_cannot_be_read_has_its_name_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(folder)

    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("stemdl.config.hashing.sha256_file", refuse)
    refused = digest(folder)
    assert refused != before
    change_a_digit(folder)
    assert digest(folder) == refused


def test_no_path_is_in_what_is_hashed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    real = __import__("hashlib").sha256

    def remember(data: bytes = b"") -> Any:
        seen.append(data)
        return real(data)

    monkeypatch.setattr("stemdl.config.hashing.hashlib.sha256", remember)
    stage_hash(with_folders(folder), "report")
    text = b"".join(seen).decode()
    assert '["b.cif","' in text
    assert str(folder.parent) not in text


def test_without_crystals_in_it_no_file_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stemdl.config.hashing.sha256_file", None)
    assert config_hash(with_folders(folder), ("scan",)) == config_hash(small_config(), ("scan",))


def test_saved_with_a_run_and_loaded_it_is_the_same(folder: Path, tmp_path: Path) -> None:
    config = with_folders(folder, run__folder=tmp_path / "run")
    save_config(config, tmp_path / "config.yaml")
    assert stage_hash(load_config(tmp_path / "config.yaml"), "train") == stage_hash(config, "train")


@pytest.mark.parametrize("stage", STAGE_SECTIONS)
def test_later_stages_depend_on_all_that_earlier_ones_do(stage: str) -> None:
    order = list(STAGE_SECTIONS)
    for earlier in order[: order.index(stage)]:
        assert set(STAGE_SECTIONS[earlier]) <= set(STAGE_SECTIONS[stage])
    with pytest.raises(KeyError):
        stage_hash(small_config(), "no stage")
