"""The JSON Schema that editors read: current, complete, and named by every configuration file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stemdl.config import Config
from stemdl.config.fields import all_paths, node_at, path_keys
from stemdl.config.schema import SCHEMA_FILE, schema_text

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def fields(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, section in [("", schema), *schema["$defs"].items()]:
        for key, field in section.get("properties", {}).items():
            yield f"{name}.{key}", field


def test_the_file_is_current() -> None:
    assert SCHEMA_FILE == CONFIGS / "schema.json"
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), "run: python -m stemdl.config.schema"


def test_every_key_is_explained() -> None:
    schema = json.loads(schema_text())
    for name, field in fields(schema):
        assert len(field.get("description", "")) > 8, name
        assert field["description"].endswith("."), name


def test_units_are_in_names_and_sentences() -> None:
    sentences = dict(fields(json.loads(schema_text())))
    for name, words in [
        ("Microscope.energy_kev", "keV"),
        ("Scan.step_angstrom", "Å"),
        ("SpecimenSection.tilt_mrad", "mrad"),
    ]:
        assert words in sentences[name]["description"]


def test_sections_are_closed_and_the_kind_is_required() -> None:
    schema = json.loads(schema_text())
    assert schema["additionalProperties"] is False
    for name, section in schema["$defs"].items():
        assert section["additionalProperties"] is False, name
    assert "name" in schema["$defs"]["ScanField"]["required"]
    assert "name" in schema["$defs"]["FcDenseNet"]["required"]


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_file_names_it(path: Path) -> None:
    assert path.read_text(encoding="utf-8").splitlines()[0] == "# yaml-language-server: $schema=schema.json"


def test_paths_of_all_keys() -> None:
    paths = all_paths()
    assert {"run.folder", "train.lr", "network.back_projection.slices", "network.growth", "network.name"} <= set(paths)
    assert len(paths) == len(set(paths))
    assert path_keys() == {("run", "folder"), ("crystals", "cif_folders")}


def test_lookup_depends_on_the_kind_of_network() -> None:
    assert node_at(("network", "growth"), {"network": {"name": "fc_densenet"}}) is not None
    assert node_at(("network", "growth"), {"network": {"name": "scanfield"}}) is None
    assert node_at(("scan", "positions", 1), {}) is not None
    assert node_at(("scan", "positions", 2), {}) is None
    assert set(Config.model_fields) == {path for path in all_paths() if "." not in path}
