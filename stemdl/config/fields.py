"""Looks things up in the configuration's JSON Schema: which keys a section has, what a key may hold, what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from stemdl.config.root import Config
from stemdl.config.yaml_layer import KeyPath

Node = dict[str, Any]


@cache
def root_node() -> Node:
    """The JSON Schema of the whole configuration."""
    return Config.model_json_schema()


def dotted(path: Sequence[str | int]) -> str:
    """A key path as it is written in `--set` and in messages: `network.back_projection.slices`."""
    return ".".join(str(part) for part in path)


def expand(node: Node, data: Any = None) -> Node:
    """Follow a reference; of several kinds of section take the one that `data` names, {} where it names none."""
    if "$ref" in node:
        node = root_node()["$defs"][node["$ref"].rpartition("/")[2]]
    if "discriminator" in node:
        name = data.get(node["discriminator"]["propertyName"]) if isinstance(data, dict) else None
        target = node["discriminator"]["mapping"].get(name) if isinstance(name, str) else None
        return expand({"$ref": target}) if target else {}
    return node


def inside(node: Node, data: Any = None) -> Node:
    """As `expand`; of a value that may also be null, what else it may be, so that its own keys and items are found."""
    node = expand(node, data)
    options = [option for option in node.get("anyOf", []) if option.get("type") != "null"]
    return inside(options[0], data) if len(options) == 1 else node


def node_at(path: Sequence[str | int], data: Any) -> Node | None:
    """Schema of the value at `path`, not expanded; None where there is no such key."""
    node = root_node()
    for part in path:
        inner = inside(node, data)
        if isinstance(part, str):
            found = inner.get("properties", {}).get(part)
            data = data.get(part) if isinstance(data, dict) else None
        else:
            items = inner.get("prefixItems", [])
            found = items[part] if part < len(items) else inner.get("items")
            data = data[part] if isinstance(data, list) and part < len(data) else None
        if not isinstance(found, dict):
            return None
        node = found
    return node


def keys_of(node: Node, data: Any = None) -> list[str]:
    """Keys that a section may have; of a section of an unknown kind, the key that says the kind."""
    if "discriminator" in node and not expand(node, data):
        return [node["discriminator"]["propertyName"]]
    return list(inside(node, data).get("properties", {}))


def kinds_of(node: Node) -> list[str]:
    """Names of the kinds of a section that has several."""
    return list(node.get("discriminator", {}).get("mapping", {}))


@cache
def all_paths() -> tuple[str, ...]:
    """Every key of the configuration as a dotted path, those of every network included."""
    return tuple(dict.fromkeys(dotted(path) for path, _ in _walk(root_node(), ())))


@cache
def path_keys() -> frozenset[KeyPath]:
    """Key paths whose value is a file path or a list of them."""
    found = ((path, inside(node)) for path, node in _walk(root_node(), ()))
    return frozenset(
        path for path, node in found if "path" in (node.get("format"), node.get("items", {}).get("format"))
    )


def _walk(node: Node, path: KeyPath) -> Iterator[tuple[KeyPath, Node]]:
    kinds = [expand({"$ref": target}) for target in node.get("discriminator", {}).get("mapping", {}).values()]
    for section in kinds or [inside(node)]:
        for key, child in section.get("properties", {}).items():
            yield (*path, key), child
            yield from _walk(child, (*path, key))


def nearest_key(key: str, section: KeyPath, keys: Sequence[str]) -> str:
    """Full path of the key that was probably meant: in this section, then anywhere; empty where nothing is near.

    A name without its unit (`step` for `step_angstrom`) counts as near, whatever the distance.
    """
    prefixed = [name for name in keys if name.startswith(f"{key}_")]
    close = prefixed or difflib.get_close_matches(key, keys, n=1, cutoff=0.6)
    if close:
        return dotted((*section, close[0]))
    own = dotted((*section, key))
    paths = [path for path in all_paths() if path != own]  # a key of another network is no answer
    same_leaf = [path for path in paths if path.rpartition(".")[2] == key]
    return (same_leaf or difflib.get_close_matches(own, paths, n=1, cutoff=0.75) or [""])[0]


def nearest_value(value: str, allowed: Sequence[str]) -> str:
    """The allowed value that was probably meant; empty where nothing is near."""
    lowered = {name.lower(): name for name in allowed}
    close = difflib.get_close_matches(value.lower(), lowered, n=1, cutoff=0.5)
    return lowered[close[0]] if close else ""


def describe(node: Node) -> str:
    """What a key may hold, in words."""
    if "discriminator" in node:
        return f"a section with {node['discriminator']['propertyName']}: {' or '.join(kinds_of(node))}"
    node = expand(node)
    if "anyOf" in node:
        long = [option for option in node["anyOf"] if expand(option).get("type") in ("array", "object")]
        short = [option for option in node["anyOf"] if option not in long]  # first: a list in words has commas
        return " or ".join(describe(option) for option in (*short, *long))
    if "enum" in node or "const" in node:
        return " or ".join(str(value) for value in node.get("enum", [node.get("const")]))
    kind = node.get("type")
    if kind == "array":
        return _describe_list(node)
    if kind in ("number", "integer"):
        return ("a whole number" if kind == "integer" else "a number") + _bounds(node)
    words = {"boolean": "true or false", "null": "null", "object": f"a section with {', '.join(keys_of(node))}"}
    return words.get(str(kind), "a path" if node.get("format") == "path" else "text")


def _describe_list(node: Node) -> str:
    items = node.get("prefixItems")
    if items:
        return f"a list of {len(items)}, each {describe(items[0])}"
    least = f" of at least {node['minItems']}" if node.get("minItems") else ""
    return f"a list{least}, each {describe(node.get('items', {}))}"


def _bounds(node: Node) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    above, below = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}"
    words = ((" above {:g}", above), (" of at least {:g}", low), (", below {:g}", below), (" of at most {:g}", high))
    return "".join(text.format(value) for text, value in words if value is not None)
