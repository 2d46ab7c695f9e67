"""The simulation stage's book-keeping, with a maker that runs in this very process."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from data_gen.generate import SimulationError, SimulationSummary, simulate, worker_count
from data_gen.sample import axes_of
from stemdl.config import Config, stage_hash
from stemdl.shards import ShardError, ShardSet, ShardWriter, read_manifest
from tests import small_ranks
from tests.small_run import Arrays, Recorder, content, make_shards, small_config, write_cif

one_thread = pytest.fixture(autouse=True)(small_ranks.one_thread)


def make(config: Config, progress: Recorder | None = None) -> SimulationSummary:
    """The stage, without other processes."""
    return simulate(config, progress=progress or Recorder(), crew=small_ranks.team_of_one())


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    """The set as it is made item after item by one writer."""
    config = small_config(tmp_path_factory.mktemp("reference"))
    make_shards(config)
    return content(config.run.folder)


def slab(folder: Path, name: str = "slab") -> None:
    """A layer in 30 µm of vacuum, which no draw finds along [001]."""
    write_cif(folder / "cif", name, [3.0, 3.0, 3e5], [("Mg", 0.0, 0.0, 0.0)])


ALONG_C = ("specimen.zone_axes=[[0, 0, 1]]", "specimen.tilt_mrad=0.0")


def test_every_item_is_made_once(tmp_path: Path, reference: Arrays) -> None:
    """Whoever makes it: more makers are in tests/multiproc."""
    config = small_config(tmp_path)
    progress = Recorder()
    summary = make(config, progress)
    assert (summary.train_samples, summary.held_out_samples) == (9, 5)
    assert (summary.train_crystals, summary.held_out_crystals) == (3, 2)
    assert (summary.skipped, summary.requeue, summary.refused, summary.failed) == (False, False, [], [])
    assert (summary.outcome.lost, summary.outcome.out_of_time, len(summary.outcome.sealed)) == ([], "", 14)
    assert progress.started == [("simulate", 14, "fields")]
    assert progress.done == sorted(progress.done)
    assert progress.done[-1] == 14
    assert content(config.run.folder) == reference


def test_as_many_workers_as_cores_that_may_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 3, 5})
    assert worker_count(small_config(tmp_path, "simulation.workers=0")) == 3
    assert worker_count(small_config(tmp_path, "simulation.workers=7")) == 7


def test_what_is_sealed_is_kept_and_a_complete_set_is_skipped(tmp_path: Path, reference: Arrays) -> None:
    config = small_config(tmp_path)
    make_shards(config)
    for part, kept in (("train", 2), ("held_out", 1)):  # as if it had been interrupted
        manifest = config.run.folder / "shards" / part / "manifest.jsonl"
        lines = manifest.read_text().splitlines(keepends=True)
        for line in lines[kept:]:
            (manifest.parent / json.loads(line)["file"]).unlink()
        manifest.write_text("".join(lines[:kept]))
    before = {path: path.read_bytes() for path in (config.run.folder / "shards").glob("*/*.h5")}
    assert len(before) == 3
    progress = Recorder()
    assert not make(config, progress).skipped
    assert progress.done[0] >= 12
    assert progress.done[-1] == 14
    assert all(path.read_bytes() == earlier for path, earlier in before.items())
    assert content(config.run.folder) == reference
    files = {path: path.stat().st_mtime_ns for path in (config.run.folder / "shards").glob("*/*")}
    progress = Recorder()
    summary = make(config, progress)
    assert summary.skipped
    assert (summary.train_samples, summary.held_out_samples) == (9, 5)
    assert not progress.started
    assert {path: path.stat().st_mtime_ns for path in (config.run.folder / "shards").glob("*/*")} == files


def test_a_whole_shard_without_its_line_is_taken_over_before_items_are_dealt(tmp_path: Path, reference: Arrays) -> None:
    """Killed between the rename and the manifest's line, as a rank that the next call does not have."""
    config = small_config(tmp_path)
    make_shards(config)
    folder = config.run.folder / "shards" / "train"
    manifest = folder / "manifest.jsonl"
    lines = manifest.read_text().splitlines(keepends=True)
    manifest.write_text(lines[0] + lines[2])
    (folder / json.loads(lines[1])["file"]).rename(folder / "shard-00005-00000.h5")
    (folder / ".tmp-00006-00000-elsewhere-1.h5").write_bytes(b"half a shard")
    assert make(config).skipped, "nothing had to be made again"
    assert content(config.run.folder) == reference
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_items_without_a_field_are_counted_named_and_not_tried_again(tmp_path: Path) -> None:
    small_config(tmp_path)
    slab(tmp_path)
    config = small_config(tmp_path, *ALONG_C, "simulation.samples=8")
    progress = Recorder()
    summary = make(config, progress)
    assert len(summary.failed) >= 1
    assert {failure.crystal for failure in summary.failed} == {"cif:slab"}
    assert all("no atom lies in the box" in failure.reason for failure in summary.failed)
    assert summary.train_samples + summary.held_out_samples == 13 - len(summary.failed)
    assert progress.done[-1] == 13
    record = json.loads((config.run.folder / "shards" / "failed.json").read_text())
    assert [(one["part"], one["item"]) for one in record["failed"]] == [(one.part, one.item) for one in summary.failed]
    for one in summary.failed:
        assert any(
            re.search(rf"failed: {one.part} items .*\b{one.item}\b.*: {one.crystal}: ", note) for note in progress.notes
        )
    assert str(config.run.folder / "shards" / "failed.json") in progress.notes[-1]
    again = Recorder()
    second = make(config, again)
    assert second.skipped
    assert second.failed == summary.failed
    assert again.notes == progress.notes, "a later call names them as well"
    (config.run.folder / "shards" / "failed.json").write_text("{")
    with pytest.raises(SimulationError, match=r"failed\.json: damaged .*remove it"):
        make(config)


def test_failures_of_another_configuration_count_for_nothing(tmp_path: Path, reference: Arrays) -> None:
    config = small_config(tmp_path)
    folder = config.run.folder / "shards"
    folder.mkdir(parents=True)
    failure = {"part": "train", "item": 3, "crystal": "cif:cu", "reason": "none"}
    (folder / "failed.json").write_text(json.dumps({"config_hash": "another", "failed": [failure]}))
    assert make(config).failed == []
    assert content(config.run.folder) == reference


def test_a_part_without_any_field_is_an_error(tmp_path: Path) -> None:
    slab(tmp_path)
    write_cif(tmp_path / "cif", "cu", [3.61] * 3, [("Cu", 0.0, 0.0, 0.0)])
    config = small_config(tmp_path, *ALONG_C, "simulation.samples=2", "held_out.samples=2")
    with pytest.raises(SimulationError, match=r"none of the 2 \w+ fields could be made: cif:slab: no atom lies in"):
        make(config)


def test_refused_crystals_are_listed_beside_the_shards(tmp_path: Path) -> None:
    small_config(tmp_path)
    (tmp_path / "cif" / "torn.cif").write_text("data_x\n_cell_length_a")
    config = small_config(tmp_path, "simulation.samples=3", "held_out.samples=2")
    summary = make(config)
    assert [name for name, _ in summary.refused] == ["cif:torn"]
    listed = json.loads((config.run.folder / "shards" / "refused.json").read_text())
    assert [(one["name"], one["reason"]) for one in listed] == summary.refused


def test_materials_of_the_two_parts_never_meet_in_the_shards(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    make(config)
    formulas = []
    for part in ("train", "held_out"):
        with ShardSet(config.run.folder / "shards" / part) as shards:
            formulas.append({str(shards.provenance(index)["formula"]) for index in range(len(shards))})
            thicknesses = {shards.parameters(index)["thickness_angstrom"] for index in range(len(shards))}
        assert thicknesses <= {4.0, 6.0, 8.0}
        assert len(thicknesses) > 1
    assert formulas[0]
    assert formulas[1]
    assert not formulas[0] & formulas[1]


def test_a_structure_with_nan_in_it_is_refused_by_name(tmp_path: Path, reference: Arrays) -> None:
    small_config(tmp_path)
    write_cif(tmp_path / "cif", "nan", [3.0] * 3, [("Mg", float("nan"), 0.0, 0.0)])
    summary = make(small_config(tmp_path, "simulation.samples=3", "held_out.samples=2"))
    assert [name for name, _ in summary.refused] == ["cif:nan"]


def test_a_folder_that_cannot_be_written_is_the_users_to_mend(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    make_shards(config)
    folder = config.run.folder / "shards" / "held_out"
    shutil.rmtree(folder)
    folder.write_text("a file where a folder is needed")
    with pytest.raises(SimulationError, match="held_out: shards cannot be written here"):
        make(config)


def test_a_living_writer_of_the_same_rank_is_not_run_over(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    folder, digest = config.run.folder / "shards" / "train", stage_hash(config, "simulate")
    with (
        ShardWriter(folder, rank=0, axes=axes_of(config), config_hash=digest, samples_per_shard=2),
        pytest.raises(SimulationError, match=r"another writer of rank 0 .* is alive"),
    ):
        make(config)


def test_lost_shards_are_named_and_made_again(tmp_path: Path, reference: Arrays) -> None:
    config = small_config(tmp_path)
    make(config)
    folder = config.run.folder / "shards" / "train"
    manifest = (folder / "manifest.jsonl").read_bytes()
    gone, cut, *_ = (entry.file for entry in read_manifest(folder))
    (folder / gone).unlink()
    (folder / cut).write_bytes((folder / cut).read_bytes()[:-1])
    progress = Recorder()
    summary = make(config, progress)
    assert (summary.skipped, summary.train_samples) == (False, 9)
    (note,) = progress.notes
    assert gone in note
    assert cut in note
    assert (folder / "manifest-1.jsonl").read_bytes() == manifest
    assert content(config.run.folder) == reference
    assert make(config).skipped


def test_the_remedy_of_a_flipped_byte_and_of_a_garbage_line_works(tmp_path: Path, reference: Arrays) -> None:
    config = small_config(tmp_path)
    make(config)
    folder = config.run.folder / "shards" / "train"
    path = folder / read_manifest(folder)[0].file
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ShardError, match=r"remove .*\.h5 and run `stemdl simulate` again: its .* made anew$"):
        ShardSet(folder, verify="hash")
    path.unlink()
    make(config)
    with (folder / "manifest.jsonl").open("a") as stream:
        stream.write("garbage\n")
    with pytest.raises(ShardError, match=r"delete .*manifest\.jsonl and run `stemdl simulate` again"):
        make(config)
    (folder / "manifest.jsonl").unlink()
    assert make(config).skipped
    assert content(config.run.folder) == reference
