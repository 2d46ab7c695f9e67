"""The JSON Schema of a configuration file, by which editors complete and explain its keys.

`python -m stemdl.config.schema` writes it to configs/schema.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stemdl.atomic_files import replace_atomically
from stemdl.config.root import Config

SCHEMA_FILE = Path(__file__).resolve().parents[2] / "configs" / "schema.json"


def schema_text() -> str:
    """The schema as indented JSON, keys in the order of the models."""
    schema = Config.model_json_schema()
    _require_kinds(schema, schema["$defs"])
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "A stemdl configuration"}
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _require_kinds(node: Any, definitions: dict[str, Any]) -> None:
    """The key that says the kind of a section has a default in the model alone: a file must name it."""
    if isinstance(node, list):
        for item in node:
            _require_kinds(item, definitions)
    if not isinstance(node, dict):
        return
    discriminator = node.get("discriminator", {})
    if "propertyName" in discriminator:
        for target in discriminator["mapping"].values():
            section = definitions[target.rpartition("/")[2]]
            section["required"] = [discriminator["propertyName"], *section.get("required", [])]
    for child in node.values():
        _require_kinds(child, definitions)


if __name__ == "__main__":
    replace_atomically(SCHEMA_FILE, schema_text().encode())
