"""The resolved configuration: saved and loaded it is equal; its hash depends on what a stage reads and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minimal_config import MINIMAL
from stemdl.config import Config, ConfigError, config_hash, load_config, save_config
from stemdl.config.yaml_layer import parse_yaml

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
ALL = sorted(CONFIGS.glob("*.yaml"))

_positive = st.floats(1e-12, 1e12)
_names = st.lists(st.text("abcÅé 0123456789.eE-_:#'\"[]{}&*!~yesnotrul", min_size=1, max_size=12), max_size=4)
_folders = st.lists(st.text("ab c.-é1:#'", min_size=1, max_size=8).filter(lambda part: part.strip(".")), min_size=1)
_network = st.one_of(
    st.fixed_dictionaries(
        {
            "name": st.just("scanfield"),
            "stages": st.integers(1, 4),
            "features": st.integers(1, 512),
            "back_projection": st.fixed_dictionaries({"pixel_angstrom": _positive, "slices": st.integers(1, 64)}),
        }
    ),
    st.fixed_dictionaries(
        {
            "name": st.just("fc_densenet"),
            "kernel": st.sampled_from([1, 3, 5, 7]),
            "blocks": st.sampled_from([[2], [1, 2, 3], [2, 2, 3, 4, 3, 2, 2]]),
            "dropout": st.floats(0, 0.99),
        }
    ),
)
_changes = st.fixed_dictionaries(
    {},
    optional={
        "run.folder": _folders.map(lambda parts: "/" + "/".join(parts)),
        "run.seed": st.integers(0, 2**63 - 1),
        "crystals.include": _names,
        "crystals.cif_folders": st.lists(_folders.map(lambda parts: "/" + "/".join(parts)), max_size=2),
        "specimen.box_angstrom": _positive,
        "specimen.thickness_angstrom": st.lists(_positive, min_size=2, max_size=2).map(sorted),
        "specimen.zone_axes": st.lists(st.lists(st.integers(1, 9), min_size=3, max_size=3), min_size=1, max_size=3),
        "microscope.energy_kev": st.one_of(st.integers(10, 1500), st.floats(10, 1500)),
        "microscope.defocus_angstrom": st.floats(-1e300, 1e300),
        "microscope.c3_angstrom": st.floats(allow_nan=False, allow_infinity=False),
        "detector.dose_e_per_a2": st.one_of(st.none(), _positive),
        "simulation.engine": st.sampled_from(["torch", "abtem"]),
        "train.augment": st.booleans(),
        "train.lr": st.floats(1e-300, 1e300),
        "network": _network,
    },
)


def minimal() -> dict[str, Any]:
    data = parse_yaml(MINIMAL).data
    data["run"]["folder"] = "/runs/it is"
    assert isinstance(data, dict)
    return data


def changed(changes: dict[str, Any]) -> Config:
    data = minimal()
    for key, value in changes.items():
        section, _, name = key.partition(".")
        if name:
            data.setdefault(section, {})[name] = value
        else:
            data[section] = value
    return Config.model_validate(data)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_changes)
def test_saved_and_loaded_it_is_equal(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = changed(changes)
    path = tmp_path / "config.yaml"
    save_config(config, path)
    again = load_config(path)
    assert again == config
    assert config_hash(again, list(Config.model_fields)) == config_hash(config, list(Config.model_fields))
    assert Config.model_validate_json(config.model_dump_json()) == config
    assert "#" not in path.read_text(encoding="utf-8").replace("'", "").splitlines()[0]


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_every_shipped_file_loads_saves_and_loads(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    assert config.run.folder.is_absolute()
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


def test_saving_again_gives_the_same_bytes(tmp_path: Path) -> None:
    config = load_config(CONFIGS / "quickstart.yaml")
    save_config(config, tmp_path / "one.yaml")
    save_config(load_config(tmp_path / "one.yaml"), tmp_path / "two.yaml")
    assert (tmp_path / "one.yaml").read_bytes() == (tmp_path / "two.yaml").read_bytes()


def test_overrides_are_in_what_is_saved(tmp_path: Path) -> None:
    config = load_config(CONFIGS / "quickstart.yaml", ["train.lr=1e-5", "run.folder=/elsewhere"])
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml").train.lr == 1e-5


@pytest.mark.parametrize("changes", [{"run.folder": "relative/folder"}, {"crystals.include": ["line\nbreak"]}])
def test_what_would_not_read_back_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "config.yaml"
    with pytest.raises(ConfigError):
        save_config(changed(changes), path)
    assert not path.exists()


def test_a_configuration_cannot_be_changed() -> None:
    config = changed({})
    with pytest.raises(ValueError, match="frozen"):
        config.train.lr = 1.0
    assert hash(config.scan) == hash(changed({}).scan)


class TestHash:
    STAGE = ("crystals", "specimen", "microscope", "scan", "detector", "simulation", "target")

    def test_ignores_the_order_of_keys(self, tmp_path: Path) -> None:
        data = minimal()
        backwards = {key: dict(reversed(value.items())) for key, value in reversed(data.items())}
        one, two = Config.model_validate(data), Config.model_validate(backwards)
        assert config_hash(one, self.STAGE) == config_hash(two, tuple(reversed(self.STAGE)))

    @pytest.mark.parametrize(
        "changes",
        [
            {"simulation.workers": 7},
            {"simulation.probe_chunk": 3},
            {"simulation.samples_per_shard": 5},
            {"run.folder": "/somewhere/else"},
            {"train.lr": 1.0},
            {"network": {"name": "fc_densenet"}},
            {"microscope.energy_kev": 100},  # a whole number for 100.0
        ],
    )
    def test_ignores_what_does_not_change_the_result(self, changes: dict[str, Any]) -> None:
        assert config_hash(changed(changes), self.STAGE) == config_hash(changed({}), self.STAGE)

    @pytest.mark.parametrize(
        "changes",
        [
            {"run.seed": 1},
            {"microscope.energy_kev": 100.0001},
            {"specimen.tilt_mrad": 1.0},
            {"scan.step_angstrom": 1.0},
            {"detector.dose_e_per_a2": 1e4},
            {"simulation.samples": 11},
            {"simulation.engine": "abtem"},
            {"crystals.exclude": ["Si-diamond"]},
            {"target.blur_sigma_angstrom": 0.4},
        ],
    )
    def test_changes_with_the_physics(self, changes: dict[str, Any]) -> None:
        assert config_hash(changed(changes), self.STAGE) != config_hash(changed({}), self.STAGE)

    def test_is_the_same_in_every_process(self) -> None:
        assert config_hash(changed({}), ("run", "scan")) == config_hash(changed({}), ("scan", "run"))
        assert len(config_hash(changed({}), ("scan",))) == 64

    def test_unknown_section(self) -> None:
        with pytest.raises(KeyError):
            config_hash(changed({}), ("scna",))
