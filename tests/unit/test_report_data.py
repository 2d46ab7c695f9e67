"""From a run folder to the content of its report: which fields are drawn, what is counted, what is missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from stemdl.config import Config, load_config
from stemdl.errors import UserError
from stemdl.reconstruct.baselines import BACK_PROJECTION, COM, MEAN, iterated_name
from stemdl.reconstruct.held_out import reconstruct_held_out
from stemdl.report import FieldRecord
from stemdl.report_data import RunFolderIncomplete, choose_fields, collect
from stemdl.shards import ShardSet
from tests.small_run import Recorder, make_shards, save_untrained, small_config


def records(*fields: tuple[str, float]) -> list[FieldRecord]:
    """One record for each (formula, r)."""
    return [
        FieldRecord(number, formula, formula, {"pearson_r": r, "nrmse": 1 - r})
        for number, (formula, r) in enumerate(fields)
    ]


def chosen(count: int, *fields: tuple[str, float]) -> list[tuple[str, float]]:
    return [fields[index] for index in choose_fields(records(*fields), count)]


def test_best_and_worst_are_drawn_and_the_quantiles_between_from_best_to_worst() -> None:
    fields = [(f"X{n}", r) for n, r in enumerate((0.5, 0.9, 0.1, 0.7, 0.3, 0.8, 0.2, 0.6, 0.4))]
    assert [r for _, r in chosen(3, *fields)] == [0.9, 0.5, 0.1]
    assert [r for _, r in chosen(5, *fields)] == [0.9, 0.7, 0.5, 0.3, 0.1]
    assert [r for _, r in chosen(1, *fields)] == [0.9]
    assert [r for _, r in chosen(2, *fields)] == [0.9, 0.1]


def test_materials_differ_as_long_as_there_are_any() -> None:
    fields = [("A", 0.9), ("A", 0.8), ("A", 0.7), ("A", 0.6), ("B", 0.55), ("C", 0.5), ("A", 0.2), ("D", 0.1)]
    assert {formula for formula, _ in chosen(4, *fields)} == {"A", "B", "C", "D"}
    assert chosen(4, *fields)[0] == ("A", 0.9)
    assert chosen(4, *fields)[-1] == ("D", 0.1)


def test_the_worst_is_drawn_also_where_its_material_is_that_of_the_best() -> None:
    fields = [("A", 0.9), ("B", 0.8), ("A", 0.1)]
    assert chosen(2, *fields) == [("A", 0.9), ("A", 0.1)]
    assert chosen(3, *fields) == list(fields)


@pytest.mark.parametrize("count", [1, 2, 3, 6, 20])
def test_no_field_is_drawn_twice_and_as_many_as_asked_for(count: int) -> None:
    fields = [("A", r) for r in (0.9, 0.8, 0.8, 0.8, 0.7, 0.1)]
    found = choose_fields(records(*fields), count)
    assert len(found) == len(set(found)) == min(count, 6)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    config = small_config(folder)
    make_shards(config)
    save_untrained(config)
    reconstruct_held_out(config, progress=Recorder())
    (config.run.folder / "shards" / "refused.json").write_text(
        json.dumps([{"name": "cif:bad", "reason": "no atoms"}, {"name": "cif:bad", "reason": "the name is taken"}])
    )
    return folder


@pytest.fixture
def config(made: Path, tmp_path: Path) -> Config:
    shutil.copytree(made, tmp_path / "x")
    return load_config(tmp_path / "x" / "config.yaml")


def test_everything_that_a_run_left_is_in_the_report(config: Config) -> None:
    metrics = {"unseen": {"fields": 5}, "baselines": {}, "seconds": {"simulate": 3.0, "train": 2.0}}
    (config.run.folder / "metrics.json").write_text(json.dumps(metrics))
    data = collect(config)
    assert data.run_name == "run"
    assert [record.field for record in data.records] == [0, 1, 2, 3, 4]
    assert all(list(r.baselines) == [MEAN, COM, BACK_PROJECTION, iterated_name(2)] for r in data.records)
    assert {record.zone_axis for record in data.records} <= {(0, 0, 1), (1, 1, 0)}
    assert dict(data.seconds) == metrics["seconds"]
    assert data.metrics == metrics
    assert [curve.name for curve in data.curves] == ["stage 1", "stage 2"]
    assert "seed: 7" in data.config_yaml
    assert (data.crystals.train, data.crystals.held_out) == (2, 2), "formulas: iron, twice a crystal, is one material"
    assert dict(data.crystals.refused) == {"cif:bad": "no atoms", "cif:bad (2)": "the name is taken"}
    assert data.target_blur_sigma_angstrom == 0.35


def test_the_fields_drawn_are_those_of_the_shards_and_the_files(config: Config) -> None:
    data = collect(config)
    r = [record.quality["pearson_r"] for record in data.records]
    assert len(data.shown) == 3
    assert data.shown[0].record.quality["pearson_r"] == max(r)
    assert data.shown[-1].record.quality["pearson_r"] == min(r)
    with ShardSet(config.run.folder / "shards" / "held_out") as shards:
        for shown in data.shown:
            sample = shards.item(shards.items.index(shown.record.field))
            assert np.array_equal(shown.amplitude, sample.amplitude.astype(np.float32))
            assert np.array_equal(shown.truth, sample.potential)
            r_shown = np.corrcoef(shown.prediction.ravel(), shown.truth.ravel())[0, 1]
            assert r_shown == pytest.approx(shown.record.quality["pearson_r"], abs=1e-5)
            assert shown.wavelength_angstrom == pytest.approx(0.0370, abs=1e-4)
            assert list(shown.baselines) == [name for name in shown.record.baselines if name != MEAN]


def test_without_metrics_the_figures_of_the_reconstruction_are_shown(config: Config) -> None:
    data = collect(config)
    assert data.metrics["unseen"]["fields"] == 5
    assert dict(data.seconds) == {}


@pytest.mark.parametrize("damaged", ["[1]", '{"seconds": 5}', '{"seconds": {"train": null}}', "{"])
def test_damaged_metrics_are_named(config: Config, damaged: str) -> None:
    (config.run.folder / "metrics.json").write_text(damaged)
    with pytest.raises(RunFolderIncomplete, match=r"metrics\.json is damaged"):
        collect(config)


def test_what_is_missing_or_damaged_is_named(config: Config) -> None:
    folder = config.run.folder / "reconstructions"
    worst = collect(config).shown[-1].record.field
    path = folder / f"field-{worst:05d}.emd"
    content = path.read_bytes()
    path.write_bytes(content[:-10])
    with pytest.raises(RunFolderIncomplete, match=f"{path.name} is missing or damaged"):
        collect(config)
    path.unlink()
    with pytest.raises(RunFolderIncomplete, match=f"{path.name} is missing or damaged"):
        collect(config)
    path.write_bytes(content)
    collect(config)
    summary = (folder / "fields.json").read_text()
    (folder / "fields.json").write_text(summary[:-5])
    with pytest.raises(RunFolderIncomplete, match=r"fields\.json is damaged"):
        collect(config)
    (folder / "fields.json").unlink()
    with pytest.raises(RunFolderIncomplete, match=r"fields\.json is missing; do `stemdl run` first") as error:
        collect(config)
    assert isinstance(error.value, UserError)
