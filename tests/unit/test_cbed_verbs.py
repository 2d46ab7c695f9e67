"""`stemdl cbed write | list | show`: files that follow from the configuration, whoever writes them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from data_gen import cbed_files
from data_gen.cbed import CbedCrystal, CbedOptions, make_cbed
from data_gen.materials import BadCrystal
from minimal_config import MINIMAL
from stemdl.atomic_files import temporary_name
from stemdl.cli import main
from stemdl.config.loader import load_config
from stemdl.launch import Rank
from stemdl.progress import SilentProgress
from stemdl.shards.cbed_layout import CbedFile

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (
    "crystals.include=[Al-fcc, Fe-bcc, MgO-rocksalt, Si-diamond]", "crystals.held_out_fraction=0.5",
    "scan.positions=[2, 2]", "scan.step_angstrom=4.0",
)  # fmt: skip


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(MINIMAL)
    return path


def write(config_file: Path, folder: Path, *more: str, settings: tuple[str, ...] = SETTINGS) -> int:
    sets = [word for setting in settings for word in ("--set", setting)]
    return main(["cbed", "write", str(config_file), "-o", str(folder), "--workers", "1", *sets, *more])


def content(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("batch_*.h5")):
        with CbedFile(path) as file:
            for name in file.names:
                sample = file.sample(name)
                found[f"{path.name}/{name}"] = (sample.material, sample.energy_kev, sample.cbed_stack.tobytes())
    return found


def test_the_files_of_a_configuration(config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write(config_file, tmp_path / "out", "--energies", "100,110", "--materials-per-file", "1") == 0
    assert "wrote 4 files with 8 samples" in capsys.readouterr().out
    names = sorted(os.listdir(tmp_path / "out"))
    assert names == ["batch_dev_0.h5", "batch_test_0.h5", "batch_train_0.h5", "batch_train_1.h5"]
    materials = set()
    for name in names:
        with h5py.File(tmp_path / "out" / name) as file:  # as any program of the database's users does
            assert list(file) == ["sample_0_0", "sample_0_1"]
            assert file["sample_0_1"]["cbed_stack"].shape == (3, 48, 48)
            assert int(file["sample_0_1"].attrs["energy_keV"]) == 110
            assert int(file["sample_0_1"].attrs["space_group"].decode("UTF-8")) in (225, 227, 229)
            materials.add(file["sample_0_0"].attrs["material"].decode("UTF-8"))
    assert materials == {"Al-fcc", "Fe-bcc", "MgO-rocksalt", "Si-diamond"}


def test_a_second_call_finds_them_and_makes_what_is_missing(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    options = ("--energies", "100", "--materials-per-file", "1")
    write(config_file, folder, *options)
    reference = content(folder)
    (folder / "batch_train_1.h5").unlink()
    remnant = folder / f"{temporary_name('batch_train_1').rpartition('-')[0]}-999999999.h5"
    remnant.write_bytes(b"half a file of a killed process")
    before = (folder / "batch_train_0.h5").stat().st_mtime_ns
    capsys.readouterr()
    assert write(config_file, folder, *options) == 0
    assert "wrote 1 files with 1 samples; 3 were there already" in capsys.readouterr().out
    assert content(folder) == reference
    assert (folder / "batch_train_0.h5").stat().st_mtime_ns == before
    assert not remnant.exists()


def test_files_of_something_else_are_not_touched(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    write(config_file, folder, "--energies", "100", "--crystals", "1")
    reference = content(folder)
    for more in (("--energies", "110"), ("--energies", "100", "--overlap", "1.0")):
        assert write(config_file, folder, "--crystals", "1", *more) == 2
        assert "another configuration made it; remove it, or give another folder" in capsys.readouterr().err
    assert content(folder) == reference
    sets = (*SETTINGS, "specimen.tilt_mrad=1.0")
    assert write(config_file, folder, "--energies", "100", "--crystals", "1", settings=sets) == 2


def test_ranks_share_the_files(config_file: Path, tmp_path: Path) -> None:
    sets = [*SETTINGS]
    config = load_config(config_file, sets)
    folder = tmp_path / "ranks"
    for rank in range(3):
        cbed_files.write_files(
            config, folder, CbedOptions((100.0,)), crystals=None, materials_per_file=1, workers=1,
            rank=Rank("srun (Slurm)", rank, 3), progress=SilentProgress(),
        )  # fmt: skip
    write(config_file, tmp_path / "alone", "--energies", "100", "--materials-per-file", "1")
    assert content(folder) == content(tmp_path / "alone")


def test_a_crystal_that_fails_is_named_and_its_number_stays_free(
    config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = make_cbed
    failed: list[str] = []

    def make(config: Any, chosen: CbedCrystal, *rest: Any) -> Iterator[Any]:
        if not failed or chosen.crystal.name in failed:
            failed.append(chosen.crystal.name)
            raise BadCrystal(chosen.crystal.name, "no atom lies in the box")
        return real(config, chosen, *rest)

    monkeypatch.setattr(cbed_files, "make_cbed", make)
    settings = (*SETTINGS[:1], "crystals.held_out_fraction=0.1", *SETTINGS[2:])
    assert write(config_file, tmp_path / "out", "--energies", "100", settings=settings) == 3
    out = capsys.readouterr().out
    assert f"FAILED: {failed[0]}: no atom lies in the box" in out
    with CbedFile(tmp_path / "out" / "batch_train_0.h5") as file:
        assert file.names == ["sample_1_0", "sample_2_0"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--set", "detector.pixels=[48, 40]"), "the layout has square patterns"),
        (("--set", "crystals.include=[Al-fc]"), "Al-fcc"),
        (("--set", "detector.dk_per_angstrom=0.03"), "detector.dk_per_angstrom"),
    ],
)
def test_a_users_mistake(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], said: str
) -> None:
    assert write(config_file, tmp_path / "out", "--energies", "100", "--crystals", "1", *more) == 2
    assert said in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*.h5")) if (tmp_path / "out").exists() else True


@pytest.mark.parametrize("text", ["", "hot", "5", "100,100", "100,nan", "0"])
def test_energies_that_are_none(config_file: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        write(config_file, Path("nowhere"), "--energies", text)
    assert left.value.code == 2
    assert "different energies from 10 to 1500 keV" in capsys.readouterr().err


def test_list_and_show(config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, target = tmp_path / "out", tmp_path / "list.json"
    write(config_file, folder, "--energies", "100,110", "--crystals", "2")
    (folder / ".tmp-batch_train_9-host-1.h5").write_bytes(b"unfinished")
    capsys.readouterr()
    assert main(["cbed", "list", str(folder), "--check", "--json", str(target)]) == 0
    out = capsys.readouterr().out
    assert "100, 110 keV, 3x48x48" in out
    assert f"{folder}: " in out
    record = json.loads(target.read_text())
    assert sum(one["samples"] for one in record["files"].values()) == 4
    assert record["problems"] == []
    path = next(folder.glob("batch_*.h5"))
    assert main(["cbed", "show", str(path), "--sample", "sample_0_1", "-o", str(tmp_path / "a.png")]) == 0
    out = capsys.readouterr().out
    assert "energy           110 keV" in out
    assert out.count("semi-angle") == 3
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_list_names_what_is_damaged_and_goes_on(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    write(config_file, folder, "--energies", "100,110", "--crystals", "1")
    path = next(folder.glob("*.h5"))
    with h5py.File(path, "r+") as file:
        file["sample_0_1"]["cbed_stack"][0, 1, 2] = np.nan
        del file["sample_0_0"].attrs["formula"]
    (folder / "broken.h5").write_text("no HDF5")
    capsys.readouterr()
    assert main(["cbed", "list", str(folder), "--check"]) == 2
    captured = capsys.readouterr()
    assert "sample_0_1: 1 of 6912 pixels are NaN" in captured.err
    assert "broken.h5: cannot be opened" in captured.err
    assert "without formula" in captured.out
    assert main(["cbed", "list", str(path)]) == 0, "values of all samples are read only if asked for"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "no/such.h5"], "no such file or folder"),
        (["list", str(ROOT / "configs")], "no file that ends in .h5"),
        (["show", str(ROOT / "README.md")], "cannot be opened"),
    ],
)
def test_wrong_paths(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cbed", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_shipped_configuration_has_the_database_s_geometry() -> None:
    config = load_config(ROOT / "configs" / "cbed-2019.yaml")
    assert config.detector.pixels == (512, 512)
    assert config.scan.positions == (8, 8)
    assert config.scan.field_angstrom == (25.0, 25.0)
    assert config.specimen.box_angstrom == 50.0
    assert config.specimen.thickness_angstrom == (100.0, 100.0)
    files, refused = cbed_files.plan_files(
        load_config(ROOT / "configs" / "cbed-2019.yaml", ["crystals.include=[Al-fcc, Si-diamond]"]),
        Path("out"), CbedOptions(), crystals=None, materials_per_file=16,
    )  # fmt: skip
    assert {file.path.name for file in files} == {"batch_train_0.h5", "batch_dev_0.h5"}
    assert refused == []
    assert CbedOptions().energies_kev == (100, 110, 120, 130, 140, 150, 160, 170, 180, 190)


def _cbed(path: Path, stack: np.ndarray | None) -> Path:
    """A file with one sample of these patterns and nothing else, or with no sample."""
    with h5py.File(path, "w") as file:
        if stack is None:
            file["other"] = [1.0]
        else:
            file.create_group("sample_0_0")["cbed_stack"] = stack
    return path


@pytest.mark.parametrize("verb", ["list", "show"])
def test_files_that_hold_nothing_to_see(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each, the same from both verbs."""
    empty = _cbed(tmp_path / "empty.h5", None)
    dark = _cbed(tmp_path / "nan.h5", np.full((3, 4, 4), np.nan, dtype=np.float32))
    for path, reason in (
        (empty, f"{empty}: no group is called sample_<material>_<energy>"),
        (dark, f"{dark}, sample_0_0: 48 of 48 pixels are NaN or infinite"),
        (tmp_path / "missing.h5", f"{tmp_path / 'missing.h5'}: no such file or folder"),
    ):
        assert main(["cbed", verb, str(path)]) == 2
        assert capsys.readouterr().err == f"stemdl: {reason}\n"
    assert main(["cbed", "show", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"stemdl: {tmp_path}: a folder; give a file\n"
