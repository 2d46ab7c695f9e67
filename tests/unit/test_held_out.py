"""Reconstruction of the held-out fields: files, figures, what is skipped, what is done again, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_gen.worklist import parts
from stemdl.checkpoints import CheckpointError, load_checkpoint
from stemdl.config import Config, load_config
from stemdl.errors import UserError
from stemdl.models.predictor import Predictor
from stemdl.models.scan_physics import ScanPhysics
from stemdl.reconstruct.baselines import BACK_PROJECTION, COM, MEAN, iterated_name
from stemdl.reconstruct.emd import read_emd
from stemdl.reconstruct.held_out import map_name, reconstruct_held_out
from stemdl.reconstruct.quality import score
from stemdl.shards import ShardError, ShardSet
from tests.small_run import Recorder, make_shards, save_untrained, small_config

NAMES = [MEAN, COM, BACK_PROJECTION, iterated_name(2)]
SPREADS = {"median", "mean", "p05", "p95", "min", "max"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that is simulated and "trained"; tests take a copy."""
    folder = tmp_path_factory.mktemp("made")
    config = small_config(folder)
    make_shards(config)
    save_untrained(config)
    return folder


@pytest.fixture
def config(made: Path, tmp_path: Path) -> Config:
    shutil.copytree(made, tmp_path / "x")
    return load_config(tmp_path / "x" / "config.yaml")


def output(config: Config) -> Path:
    return config.run.folder / "reconstructions"


def test_one_file_for_each_field_and_the_figures_of_all(config: Config) -> None:
    progress = Recorder()
    summary = reconstruct_held_out(config, progress=progress)
    assert not summary.skipped
    assert summary.fields == 5
    assert sorted(path.name for path in output(config).iterdir()) == [
        *(f"field-{item:05d}.emd" for item in range(5)),
        "fields.json",
    ]
    assert progress.started == [("reconstruct", 10, "passes")]
    assert progress.done == sorted(progress.done)
    assert progress.done[-1] == 10
    unseen = summary.metrics["unseen"]
    assert unseen["fields"] == 5
    assert unseen["materials"] == 2
    for name in ("pearson_r", "nrmse", "ssim", "frc"):
        assert set(unseen[name]) == SPREADS
    assert list(summary.metrics["baselines"]) == NAMES[:-1]
    assert list(summary.metrics["physics_alone"]) == NAMES[-1:]
    for name, figures in {**summary.metrics["baselines"], **summary.metrics["physics_alone"]}.items():
        assert {"pearson_r", "nrmse", "ssim", "frc"} <= set(figures), name
        assert set(figures["share_of_fields_where_network_is_better"]) == {"pearson_r", "nrmse", "both"}
    assert summary.metrics["baselines"][MEAN]["pearson_r"]["median"] == 0.0
    json.dumps(summary.metrics, allow_nan=False)


def test_the_files_hold_what_was_scored(config: Config) -> None:
    reconstruct_held_out(config, progress=Recorder())
    data = json.loads((output(config) / "fields.json").read_text())
    held_out = {crystal.name: crystal.formula for crystal in parts(config)[0][1].crystals}
    with ShardSet(config.run.folder / "shards" / "held_out") as shards:
        for row in data["fields"]:
            emd = read_emd(output(config) / row["file"])
            sample = shards.item(shards.items.index(row["item"]))
            assert np.array_equal(emd.maps["true_potential"].data, sample.potential)
            assert np.allclose(emd.maps["error"].data, emd.potential - sample.potential, atol=1e-4)
            assert emd.uncertainty is not None
            assert emd.uncertainty.min() >= 0
            assert emd.pixel_angstrom == 0.5
            assert emd.metadata["crystal"] == row["crystal"] == sample.provenance["crystal"]
            assert held_out[row["crystal"]] == row["formula"]
            assert row["thickness_angstrom"] == sample.parameters["thickness_angstrom"]
            for name, figures in {"": row["quality"], **row["baselines"]}.items():
                picture = emd.maps[map_name(name)].data if name else emd.potential
                found = score(
                    picture, sample.potential, pixel_angstrom=0.5, thickness_angstrom=row["thickness_angstrom"]
                )
                assert found.pearson_r == pytest.approx(figures["pearson_r"], abs=1e-6), name
                assert found.nrmse == pytest.approx(figures["nrmse"], rel=1e-5), name
            units = {emd.maps[map_name(name)].units for name in NAMES}
            assert units == {emd.maps["error"].units} == {"V Å"}


def test_the_files_say_how_they_were_recorded(config: Config) -> None:
    reconstruct_held_out(config, progress=Recorder())
    metadata = read_emd(output(config) / "field-00000.emd").metadata
    row = json.loads((output(config) / "fields.json").read_text())["fields"][0]
    assert metadata["energy_kev"] == config.microscope.energy_kev
    assert metadata["semiangle_mrad"] == config.microscope.semiangle_mrad
    assert metadata["defocus_angstrom"] == config.microscope.defocus_angstrom
    assert metadata.get("dose_e_per_a2") == config.detector.dose_e_per_a2
    assert metadata.get("zone_axis") == row["zone_axis"]
    assert metadata["error_is"] == "reconstruction minus truth"
    assert metadata["uncertainty_is"].startswith("standard deviation")


def test_fields_recorded_differently_are_seen_each_with_its_own_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(
        tmp_path,
        "vary.energy_kev={choice: [80, 120]}",
        "vary.step_angstrom={uniform: [1.9, 2.0]}",
        "vary.dose_e_per_a2={log_uniform: [1e4, 1e6]}",
        "detector.dead_fraction=0.01",
    )
    make_shards(config)
    save_untrained(config)
    seen: list[tuple[float, float]] = []
    first = ScanPhysics.first

    def remember(self: ScanPhysics, amplitude: Any, thickness: float, own: dict[str, float]) -> Any:
        seen.append((own["energy_kev"], own["scan_step_angstrom"]))
        return first(self, amplitude, thickness, own)

    monkeypatch.setattr(ScanPhysics, "first", remember)
    reconstruct_held_out(config, progress=Recorder())
    rows = json.loads((output(config) / "fields.json").read_text())["fields"]
    with ShardSet(config.run.folder / "shards" / "held_out") as shards:
        for index, row in enumerate(rows):
            sealed = shards.parameters(index)
            assert row["parameters"].items() >= sealed.items()
            assert row["parameters"]["dose_e_per_a2"] == pytest.approx(10 ** (4 + 2 * sealed["dose_quantile"]))
            metadata = read_emd(output(config) / row["file"]).metadata
            assert all(metadata[name] == value for name, value in row["parameters"].items())
    assert {row["parameters"]["energy_kev"] for row in rows} == {80.0, 120.0}
    own = [(row["parameters"]["energy_kev"], row["parameters"]["scan_step_angstrom"]) for row in rows]
    assert sorted(seen[:5]) == sorted(own)
    assert len(set(seen)) == len(seen) == 14  # the held-out fields, then those on which the baselines are fitted


def test_a_noisy_reconstruction_is_the_same_once_more(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "x")
    config = load_config(tmp_path / "x" / "config.yaml", ["detector.dose_e_per_a2=1e4"])
    save_untrained(config)
    reconstruct_held_out(config, progress=Recorder())
    before = (output(config) / "fields.json").read_bytes()
    assert read_emd(output(config) / "field-00000.emd").metadata["dose_e_per_a2"] == 1e4
    shutil.rmtree(output(config))
    reconstruct_held_out(config, progress=Recorder())
    assert (output(config) / "fields.json").read_bytes() == before


def test_without_the_average_no_uncertainty_is_claimed(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "x")
    config = load_config(tmp_path / "x" / "config.yaml", ["reconstruct.symmetry_average=false"])
    save_untrained(config)  # the training takes the average of one stage as the start of the next
    reconstruct_held_out(config, progress=Recorder())
    emd = read_emd(output(config) / "field-00000.emd")
    assert emd.uncertainty is None
    assert emd.metadata["uncertainty_is"] == "not estimated"


def test_the_count_of_passes_is_complete_without_physics_too(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    predict = Predictor.predict

    def uncounted(*args: Any, done: Any, **keys: Any) -> Any:
        return predict(*args, **keys)

    monkeypatch.setattr(Predictor, "predict", uncounted)
    progress = Recorder()
    reconstruct_held_out(config, progress=progress)
    assert progress.done[-1] == progress.started[0][1] == 10


def test_the_same_input_gives_the_same_bytes(config: Config) -> None:
    reconstruct_held_out(config, progress=Recorder())
    before = {path.name: path.read_bytes() for path in output(config).iterdir()}
    shutil.rmtree(output(config))
    reconstruct_held_out(config, progress=Recorder())
    assert {path.name: path.read_bytes() for path in output(config).iterdir()} == before


def test_a_second_call_is_skipped_and_says_the_same(config: Config) -> None:
    first = reconstruct_held_out(config, progress=Recorder())
    progress = Recorder()
    second = reconstruct_held_out(config, progress=progress)
    assert second.skipped
    assert (second.metrics, second.fields) == (first.metrics, 5)
    assert not progress.started
    assert not progress.notes


def _lose(folder: Path) -> str:
    (folder / "field-00003.emd").unlink()
    return "field-00003.emd is missing"


def _truncate(folder: Path) -> str:
    path = folder / "field-00001.emd"
    path.write_bytes(path.read_bytes()[:-1])
    return "field-00001.emd is damaged"


def _tear(folder: Path) -> str:
    path = folder / "fields.json"
    path.write_text(path.read_text()[:100])
    return "fields.json is damaged"


def _forget(folder: Path) -> str:
    (folder / "fields.json").unlink()
    return ""


@pytest.mark.parametrize("damage", [_lose, _truncate, _tear, _forget])
def test_what_is_missing_or_damaged_is_done_again_and_said(config: Config, damage: Any) -> None:
    first = reconstruct_held_out(config, progress=Recorder())
    before = {path.name: path.read_bytes() for path in output(config).iterdir()}
    said = damage(output(config))
    progress = Recorder()
    again = reconstruct_held_out(config, progress=progress)
    assert not again.skipped
    assert again.metrics == first.metrics
    assert {path.name: path.read_bytes() for path in output(config).iterdir()} == before
    assert len(progress.notes) == bool(said)
    assert all(said in note for note in progress.notes)


def test_other_weights_of_the_same_configuration_are_not_skipped(config: Config) -> None:
    first = reconstruct_held_out(config, progress=Recorder())
    weights = load_checkpoint(config.run.folder / "checkpoints").weights
    shutil.rmtree(config.run.folder / "checkpoints")
    save_untrained(config, seed=2)
    assert load_checkpoint(config.run.folder / "checkpoints").weights.keys() == weights.keys()
    second = reconstruct_held_out(config, progress=Recorder())
    assert not second.skipped
    assert second.metrics != first.metrics


def test_missing_damaged_and_incomplete_checkpoints_are_named(config: Config) -> None:
    folder = config.run.folder / "checkpoints"
    weights = next(folder.glob("step-*/weights.pt"))
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"weights\.pt: damaged"):
        reconstruct_held_out(config, progress=Recorder())
    shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match="checkpoints: no checkpoint here"):
        reconstruct_held_out(config, progress=Recorder())
    save_untrained(config, stages_done=1)
    with pytest.raises(CheckpointError, match="1 of the network's 2 stages are trained") as error:
        reconstruct_held_out(config, progress=Recorder())
    assert isinstance(error.value, UserError)
    shutil.rmtree(folder)
    save_untrained(config, config_hash="another")
    with pytest.raises(CheckpointError, match="trained with another configuration"):
        reconstruct_held_out(config, progress=Recorder())
    assert not output(config).exists()


def test_a_damaged_shard_is_named(config: Config) -> None:
    shard = next((config.run.folder / "shards" / "held_out").glob("*.h5"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ShardError, match=shard.name):
        reconstruct_held_out(config, progress=Recorder())


def test_names_of_maps_are_what_emd_allows() -> None:
    assert map_name("8 conjugate-gradient steps") == "baseline_8_conjugate_gradient_steps"
    assert len({map_name(name) for name in NAMES}) == len(NAMES)
