"""Estimates of memory and disk: the bytes they count, and what is said where they do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimal_config import MINIMAL
from stemdl.config import Config, load_config
from stemdl.preflight import resources
from stemdl.preflight.findings import Finding
from stemdl.preflight.machine import bytes_in_words, cores, free_disk_bytes, memory_bytes
from stemdl.preflight.network import check_network
from stemdl.preflight.resources import check_resources, sample_bytes, simulation_bytes

GIB = 2**30


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "minimal.yaml"
    path.write_text(MINIMAL)
    return load_config(path, ["run.folder=" + str(tmp_path / "not" / "yet"), "simulation.workers=4"])


def findings(config: Config, monkeypatch: pytest.MonkeyPatch, memory: int, disk: int) -> dict[str, Finding]:
    monkeypatch.setattr(resources, "memory_bytes", lambda: memory)
    monkeypatch.setattr(resources, "free_disk_bytes", lambda folder: (folder.parent, disk))
    _, description = check_network(config)
    return {finding.check: finding for finding in check_resources(config, 1, description)}


def test_bytes_of_a_sample(config: Config) -> None:
    assert sample_bytes(config) == 8 * 8 * 48 * 48 * 2 + 32 * 32 * 4


def test_simulation_grows_with_grid_and_positions(config: Config) -> None:
    coarse = simulation_bytes(config, config.simulation)
    fine = simulation_bytes(config, config.held_out)
    waves = 96**2 * 64 * 8  # the probes of all positions alone
    assert waves < coarse - resources.PROCESS_BYTES < 20 * waves
    assert fine > coarse


def test_everything_fits(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(config, monkeypatch, 64 * GIB, 64 * GIB)
    assert {finding.severity for finding in found.values()} == {"ok"}
    assert set(found) == {"memory: simulation", "memory: data set", "memory: network", "disk: shards"}


def test_too_many_workers(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    one = simulation_bytes(config, config.held_out)
    finding = findings(config, monkeypatch, int(2.5 * one), 64 * GIB)["memory: simulation"]
    assert (finding.severity, finding.key) == ("warning", "simulation.workers")
    assert "simulation.workers: 2" in finding.right
    finding = findings(config, monkeypatch, int(0.5 * one), 64 * GIB)["memory: simulation"]
    assert finding.key == "simulation.probe_chunk"


def test_data_set_larger_than_memory(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 10 * sample_bytes(config)
    finding = findings(config, monkeypatch, int(size), 64 * GIB)["memory: data set"]
    assert (finding.severity, finding.key) == ("warning", "simulation.samples")
    assert "at most 5 fields" in finding.right


def test_batch_larger_than_memory(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    _, description = check_network(config)
    assert description is not None
    fixed = resources.PROCESS_BYTES + description.training_state_bytes
    limit = fixed + int(3.5 * description.activation_bytes_per_sample)
    finding = findings(config, monkeypatch, limit, 64 * GIB)["memory: network"]
    assert (finding.severity, finding.key) == ("warning", "train.batch")
    assert "train.batch: 3" in finding.right


def test_ranks_share_the_batch(config: Config) -> None:
    _, description = check_network(config)
    fields = [
        next(f.found for f in check_resources(config, ranks, description) if f.check == "memory: network")
        for ranks in (1, 4)
    ]
    assert fields[0].startswith("16 fields")
    assert fields[1].startswith("4 fields")


def test_disk_counts_what_is_there_already(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    need = (config.simulation.samples + config.held_out.samples) * sample_bytes(config)
    short = findings(config, monkeypatch, 64 * GIB, int(need))["disk: shards"]
    assert (short.severity, short.key) == ("warning", "run.folder")
    assert str(config.run.folder.parent) in short.found
    shard = config.run.folder / "shards" / "train" / "shard-00000-00000.h5"
    shard.parent.mkdir(parents=True)
    with shard.open("wb") as stream:
        stream.truncate(int(0.9 * need))
    assert findings(config, monkeypatch, 64 * GIB, int(need))["disk: shards"].severity == "ok"


def test_free_disk_of_a_folder_that_is_not_there(tmp_path: Path) -> None:
    place, free = free_disk_bytes(tmp_path / "a" / "b")
    assert place == tmp_path
    assert free > 0


def test_memory_of_a_container(tmp_path: Path) -> None:
    total = memory_bytes(tmp_path)
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    (group / "memory.max").write_text("max\n")
    assert memory_bytes(tmp_path) == total
    (group / "memory.max").write_text("123456789\n")
    assert memory_bytes(tmp_path) == 123456789
    assert cores() >= 1


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 * GIB, "5 GiB"),
        (1000 * 2**20, "1000 MiB"),
        (5e14, "455 TiB"),
    ],
)
def test_bytes_in_words(count: float, words: str) -> None:
    assert bytes_in_words(count) == words
