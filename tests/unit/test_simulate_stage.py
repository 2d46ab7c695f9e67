"""The simulation stage's book-keeping, with workers that run one after the other in this very process."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import data_gen.generate
import data_gen.workers
from data_gen.generate import SimulationError, SimulationFault, simulate, worker_count
from data_gen.materials import BadCrystal
from data_gen.sample import axes_of, make_sample
from data_gen.workers import Broken, Failure, Finished, Share, do_shares
from data_gen.worklist import parts
from stemdl.config import Config, stage_hash
from stemdl.shards import ShardError, ShardSet, ShardWriter, read_manifest
from tests.small_run import Arrays, Recorder, content, make_shards, small_config, write_cif


def one_after_the_other(config: Config, shares: Sequence[Sequence[Share]], digest: str) -> Iterator[object]:
    """In place of `run_workers`: the same shares and ranks, without processes."""
    for rank, share in enumerate(shares):
        told: list[object] = []
        do_shares(config, share, digest, rank, told.append)
        for message in told:
            if isinstance(message, Broken):
                raise SimulationFault(message.text) if message.is_ours else SimulationError(message.text)
            if message is not None:
                yield message


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_gen.generate, "run_workers", one_after_the_other)


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


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_every_item_is_made_once_whoever_makes_it(tmp_path: Path, reference: Arrays, count: int) -> None:
    config = small_config(tmp_path, f"simulation.workers={count}")
    progress = Recorder()
    summary = simulate(config, progress=progress)
    assert (summary.train_samples, summary.held_out_samples) == (9, 5)
    assert (summary.train_crystals, summary.held_out_crystals) == (3, 2)
    assert (summary.skipped, summary.refused, summary.failed) == (False, [], [])
    assert progress.started == [("simulate", 14, "fields")]
    assert progress.done == list(range(15))
    ranks = {entry.file.split("-")[1] for entry in read_manifest(config.run.folder / "shards" / "train")}
    assert len(ranks) == min(count, 9)
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
    assert not simulate(config, progress=progress).skipped
    assert progress.done == [12, 13, 14]
    assert all(path.read_bytes() == earlier for path, earlier in before.items())
    assert content(config.run.folder) == reference
    files = {path: path.stat().st_mtime_ns for path in (config.run.folder / "shards").glob("*/*")}
    progress = Recorder()
    summary = simulate(config, progress=progress)
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
    assert simulate(config, progress=Recorder()).skipped, "nothing had to be made again"
    assert content(config.run.folder) == reference
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_items_without_a_field_are_counted_named_and_not_tried_again(tmp_path: Path) -> None:
    small_config(tmp_path)
    slab(tmp_path)
    config = small_config(tmp_path, *ALONG_C, "simulation.samples=8")
    progress = Recorder()
    summary = simulate(config, progress=progress)
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
    second = simulate(config, progress=again)
    assert second.skipped
    assert second.failed == summary.failed
    assert again.notes == progress.notes, "a later call names them as well"
    (config.run.folder / "shards" / "failed.json").write_text("{")
    with pytest.raises(SimulationError, match=r"failed\.json: damaged .*remove it"):
        simulate(config, progress=Recorder())


def test_failures_of_another_configuration_count_for_nothing(tmp_path: Path, reference: Arrays) -> None:
    config = small_config(tmp_path)
    folder = config.run.folder / "shards"
    folder.mkdir(parents=True)
    failure = {"part": "train", "item": 3, "crystal": "cif:cu", "reason": "none"}
    (folder / "failed.json").write_text(json.dumps({"config_hash": "another", "failed": [failure]}))
    assert simulate(config, progress=Recorder()).failed == []
    assert content(config.run.folder) == reference


def test_a_part_without_any_field_is_an_error(tmp_path: Path) -> None:
    slab(tmp_path)
    write_cif(tmp_path / "cif", "cu", [3.61] * 3, [("Cu", 0.0, 0.0, 0.0)])
    config = small_config(tmp_path, *ALONG_C, "simulation.samples=2", "held_out.samples=2")
    with pytest.raises(SimulationError, match=r"none of the 2 \w+ fields could be made: cif:slab: no atom lies in"):
        simulate(config, progress=Recorder())


def test_refused_crystals_are_listed_beside_the_shards(tmp_path: Path) -> None:
    small_config(tmp_path)
    (tmp_path / "cif" / "torn.cif").write_text("data_x\n_cell_length_a")
    config = small_config(tmp_path, "simulation.samples=3", "held_out.samples=2")
    summary = simulate(config, progress=Recorder())
    assert [name for name, _ in summary.refused] == ["cif:torn"]
    listed = json.loads((config.run.folder / "shards" / "refused.json").read_text())
    assert [(one["name"], one["reason"]) for one in listed] == summary.refused


def test_materials_of_the_two_parts_never_meet_in_the_shards(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    simulate(config, progress=Recorder())
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


def told_by(config: Config, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> list[object]:
    """What a worker tells of items 2 and 3 of the training part, the second of which raises."""
    part = parts(config)[0][0]

    def changed(config: Config, part: object, item: int, engine: object) -> object:
        if item == 3 and error is not None:
            raise error
        return make_sample(config, part, item, engine)  # type: ignore[arg-type]

    monkeypatch.setattr(data_gen.workers, "make_sample", changed)
    told: list[object] = []
    do_shares(config, [Share(part, (2, 3, 4))], stage_hash(config, "simulate"), 0, told.append)
    return told


def test_a_worker_tells_of_every_item_and_of_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = told_by(small_config(tmp_path), monkeypatch)
    assert told == [*(Finished("train", item) for item in (2, 3, 4)), None]


def test_a_crystal_that_cannot_be_cut_does_not_end_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = told_by(small_config(tmp_path), monkeypatch, BadCrystal("cif:x", "too thin"))
    assert told == [Finished("train", 2), Failure("train", 3, "cif:x", "too thin"), Finished("train", 4), None]


@pytest.mark.parametrize(
    ("error", "is_ours", "said"),
    [
        (
            ZeroDivisionError("no way"),
            True,
            r"train item 3 \(cif:[\w-]+\): ZeroDivisionError: no way\nTraceback .*changed",
        ),
        (MemoryError("9 GB"), False, r"train item 3 \(cif:[\w-]+\): out of memory \(9 GB\); lower simulation\.workers"),
        (ShardError("no space"), False, r"train item 3 \(cif:[\w-]+\): no space$"),
    ],
)
def test_any_other_error_is_told_with_the_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, is_ours: bool, said: str
) -> None:
    told = told_by(small_config(tmp_path), monkeypatch, error)
    assert told[0] == Finished("train", 2)
    assert len(told) == 2
    assert isinstance(told[1], Broken)
    assert told[1].is_ours == is_ours
    assert re.match(said, told[1].text, re.DOTALL), told[1].text


def test_a_folder_that_cannot_be_written_is_the_users_to_mend(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    make_shards(config)
    folder = config.run.folder / "shards" / "held_out"
    shutil.rmtree(folder)
    folder.write_text("a file where a folder is needed")
    with pytest.raises(SimulationError, match="held_out: shards cannot be written here"):
        simulate(config, progress=Recorder())


def test_a_living_writer_of_the_same_rank_is_not_run_over(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    folder, digest = config.run.folder / "shards" / "train", stage_hash(config, "simulate")
    with (
        ShardWriter(folder, rank=0, axes=axes_of(config), config_hash=digest, samples_per_shard=2),
        pytest.raises(SimulationError, match=r"another writer of rank 0 .* is alive"),
    ):
        simulate(config, progress=Recorder())


def test_lost_shards_are_named_and_made_again(tmp_path: Path, reference: Arrays) -> None:
    config = small_config(tmp_path)
    simulate(config, progress=Recorder())
    folder = config.run.folder / "shards" / "train"
    manifest = (folder / "manifest.jsonl").read_bytes()
    gone, cut, *_ = (entry.file for entry in read_manifest(folder))
    (folder / gone).unlink()
    (folder / cut).write_bytes((folder / cut).read_bytes()[:-1])
    progress = Recorder()
    summary = simulate(config, progress=progress)
    assert (summary.skipped, summary.train_samples) == (False, 9)
    (note,) = progress.notes
    assert gone in note
    assert cut in note
    assert (folder / "manifest-1.jsonl").read_bytes() == manifest
    assert content(config.run.folder) == reference
    assert simulate(config, progress=Recorder()).skipped


def test_the_remedy_of_a_flipped_byte_and_of_a_garbage_line_works(tmp_path: Path, reference: Arrays) -> None:
    config = small_config(tmp_path)
    simulate(config, progress=Recorder())
    folder = config.run.folder / "shards" / "train"
    path = folder / read_manifest(folder)[0].file
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ShardError, match=r"remove .*\.h5 and run `stemdl simulate` again: its .* made anew$"):
        ShardSet(folder, verify="hash")
    path.unlink()
    simulate(config, progress=Recorder())
    with (folder / "manifest.jsonl").open("a") as stream:
        stream.write("garbage\n")
    with pytest.raises(ShardError, match=r"delete .*manifest\.jsonl and run `stemdl simulate` again"):
        simulate(config, progress=Recorder())
    (folder / "manifest.jsonl").unlink()
    assert simulate(config, progress=Recorder()).skipped
    assert content(config.run.folder) == reference
