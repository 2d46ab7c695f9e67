"""CIF files that would stall a run: pipes, devices, very many atoms; and that large ones are read as small ones are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from data_gen.materials import cif_folder
from data_gen.materials.cif import LARGEST_SITE_COUNT, read_cif
from data_gen.materials.cif_folder import files_below, read_cif_folder, reading_told
from data_gen.materials.crystal import BadCrystal
from data_gen.materials.geometry import close_pairs
from data_gen.materials.symmetry import orbit, orbits, space_group_operations
from stemdl.cli import main
from tests.small_run import small_config

FCC_NAMES = ("a", "b", "c")


def _write(path: Path, positions: np.ndarray, edge_angstrom: float, group: int = 1) -> None:
    head = ["data_x", *(f"_cell_length_{axis} {edge_angstrom}" for axis in "abc")]
    head += [*(f"_cell_angle_{name} 90" for name in ("alpha", "beta", "gamma")), f"_space_group_IT_number {group}"]
    head += ["loop_", *(f"_atom_site_{tag}" for tag in ("type_symbol", "fract_x", "fract_y", "fract_z"))]
    path.write_text("\n".join([*head, *(f"Si {x:.6f} {y:.6f} {z:.6f}" for x, y, z in positions)]) + "\n")


def _grid(side: int) -> np.ndarray:
    return np.stack(np.meshgrid(*[np.arange(side) / side] * 3, indexing="ij"), axis=-1).reshape(-1, 3)


def test_what_is_no_regular_file_is_refused_and_the_others_are_read(tmp_path: Path) -> None:
    _write(tmp_path / "good.cif", _grid(1), 3.0)
    os.mkfifo(tmp_path / "pipe.cif")
    (tmp_path / "folder.cif").mkdir()
    (tmp_path / "device.cif").symlink_to("/dev/zero")
    (tmp_path / "gone.cif").symlink_to(tmp_path / "nowhere")
    program = (  # in a process of its own, since the fault would be to wait for ever
        "import sys; from data_gen.materials.cif_folder import read_cif_folder as read\n"
        "good, bad = read(sys.argv[1])\n"
        "print(*(one.name for one in good), *(str(one) for one in bad), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    good, *bad = done.stdout.splitlines()
    assert good == "cif:good"
    assert [line.partition(":")[2].partition(":")[0] for line in bad] == ["device", "folder", "gone", "pipe"]
    for line in (bad[0], bad[1], bad[3]):
        assert "is no regular file" in line
    assert bad[2].endswith("gone.cif: No such file or directory")


def test_a_file_that_is_longer_than_allowed_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "large.cif"
    path.touch()
    os.truncate(path, 40 * 2**30)  # of holes: takes no space
    with pytest.raises(BadCrystal, match="the file has 42949672960 bytes, more than the 33554432 allowed"):
        read_cif(path)


@pytest.mark.parametrize(("count", "group", "images"), [(LARGEST_SITE_COUNT + 1, 1, 50001), (1100, 225, 211200)])
def test_too_many_sites_are_refused_before_they_are_made(
    count: int, group: int, images: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data_gen.materials.cif._expand", None)
    _write(tmp_path / "x.cif", np.random.default_rng(1).random((count, 3)), 100.0, group)
    with pytest.raises(BadCrystal, match=f"make up to {images} sites; the cell may hold 50000"):
        read_cif(tmp_path / "x.cif")


def test_thousands_of_atoms_are_read_and_at_one_point_refused(tmp_path: Path) -> None:
    _write(tmp_path / "a.cif", _grid(16), 40.0)
    assert len(read_cif(tmp_path / "a.cif").species) == 16**3
    _write(tmp_path / "b.cif", np.zeros((8000, 3)), 40.0)
    with pytest.raises(BadCrystal, match=r"more than 4000000 pairs of sites are nearer than 0\.02 Å"):
        read_cif(tmp_path / "b.cif")


@pytest.mark.parametrize("group", [1, 2, 62, 139, 166, 194, 216, 225, 227, 230])
def test_many_orbits_are_the_single_ones_bit_for_bit(group: int) -> None:
    cell = np.diag([7.0, 7.0, 9.0])
    if group in (166, 194):
        cell = np.array([[7.0, 0.0, 0.0], [-3.5, 7.0 * np.sqrt(0.75), 0.0], [0.0, 0.0, 9.0]])
    points = np.random.default_rng(group).random((6, 3))
    points[1:4] = np.array([[0, 0, 0], [0.25, 0.25, 0.25], [0.3333, 0.6667, 0.25]])
    points[4] = np.array([0.0004, 0.0, 0.0])  # near a special position: its images are copies
    operations = space_group_operations(group)
    images, point_of = orbits(operations, points, cell)
    for index, point in enumerate(points):
        np.testing.assert_array_equal(images[point_of == index], orbit(operations, point, cell))
    assert (np.diff(point_of) >= 0).all()


def test_pairs_on_the_planes_of_a_grid_are_found_once() -> None:
    pairs = close_pairs(np.diag([10.0] * 3), _grid(10), 1.001)
    assert len(pairs.first) == 3 * 1000
    assert len({(a, b, *s) for a, b, s in zip(pairs.first, pairs.second, map(tuple, pairs.shift), strict=True)}) == 3000
    np.testing.assert_allclose(pairs.distance_angstrom, 1.0)


def test_how_far_the_reading_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FCC_NAMES:
        _write(tmp_path / f"{name}.cif", _grid(1), 3.0)
    monkeypatch.setattr(cif_folder, "_TOLD_EVERY_S", 0.0)
    told: list[tuple[int, int]] = []
    with reading_told(lambda done, total: told.append((done, total))):
        read_cif_folder(tmp_path)
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_folders_inside_are_counted_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    _write(tmp_path / "more" / "a.cif", _grid(1), 3.0)
    with pytest.raises(FileNotFoundError, match="1 lie in folders inside it, which are not searched"):
        read_cif_folder(tmp_path)
    _write(tmp_path / "b.cif", _grid(1), 3.0)
    assert [crystal.name for crystal in read_cif_folder(tmp_path)[0]] == ["cif:b"]
    assert files_below(tmp_path) == 1


def test_a_run_tells_of_a_broken_file_once_and_of_unread_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_config(tmp_path)
    (tmp_path / "cif" / "broken.cif").write_text("data_x\n")
    (tmp_path / "cif" / "more").mkdir()
    for name in FCC_NAMES:
        _write(tmp_path / "cif" / "more" / f"{name}.cif", _grid(1), 3.0)
    command = ["simulate", str(tmp_path / "config.yaml"), "--set", f"run.folder={tmp_path / 'run'}"]
    main([*command, "--set", "simulation.samples=2", "--set", "held_out.samples=1", "--set", "simulation.workers=1"])
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("cif:broken") == 1
    assert "1 structure refused" in said
    assert f"{tmp_path / 'cif'}: CIF files in folders inside it are not searched for and not used: 3" in said
