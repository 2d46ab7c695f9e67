"""Reads a configuration from YAML and overrides, and writes the resolved one next to a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stemdl.atomic_files import replace_atomically
from stemdl.config.errors import ConfigError, Problem
from stemdl.config.fields import dotted, nearest_value, node_at, path_keys
from stemdl.config.problems import Places, found_words, from_faults, from_validation, unknown_key, value_at
from stemdl.config.root import Config
from stemdl.config.yaml_layer import MAX_CHARACTERS, KeyPath, dump_yaml, parse_yaml


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read, override, check and resolve a configuration.

    `overrides` have the form `train.lr=1e-3`: a key path and a YAML value, applied in order; a list or a section is set
    as a whole (`scan.positions=[4, 4]`). Relative paths in the file start at the file's folder, those of an override at
    the current folder; `~` is the home folder. The result has absolute paths alone.

    Raises
    ------
    ConfigError
        The file cannot be read, is no YAML, or anything in it or in the overrides is wrong: all problems at once.
    """
    return _config_from(_read(path), str(path), path.parent, overrides)


def save_config(config: Config, path: Path) -> None:
    """Write a configuration so that `load_config(path)` gives an equal object; whole or not at all.

    Raises
    ------
    ConfigError
        It would not load to an equal object (relative paths, control characters in a name).
    OSError
        The folder is missing or not writable.
    """
    text = dump_yaml(config.model_dump(mode="json"))
    if _config_from(text, str(path), path.parent, ()) != config:
        problem = Problem("", str(path), "a configuration that reads back differently", "absolute paths alone")
        raise ConfigError(str(path), [problem])
    replace_atomically(path, text.encode())


def _config_from(text: str, file: str, folder: Path, overrides: Sequence[str]) -> Config:
    document = parse_yaml(text)
    problems, data = from_faults(document.faults, file), document.data
    places = Places(file, document.lines)
    if not isinstance(data, dict):
        if not problems:
            found = "an empty file" if data is None else found_words(data)
            problems = [Problem("", file, found, "sections such as `run:` and `train:`")]
        raise ConfigError(file, problems)
    path_problems = _resolve_paths(data, (), folder.resolve(), places)
    for override in overrides:
        problems += _apply(override, data, places)
    problems += [problem for problem in path_problems if not places.of(problem.key.split(".")).startswith("--set")]
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        problems += from_validation(error, data, places)
    if problems:
        raise ConfigError(file, sorted(dict.fromkeys(problems), key=lambda problem: places.order(problem.key)))
    return config


def _apply(override: str, data: dict[str, Any], places: Places) -> list[Problem]:
    """Put one override into the data; problems where it cannot be."""
    name, equals, text = override.partition("=")
    place = f"--set {override}"
    path: KeyPath = tuple(part.strip() for part in name.split("."))
    if not equals or not all(path):
        return [Problem("", place, found_words(override), "KEY=VALUE, such as train.lr=1e-3")]
    if node_at(path, data) is None:
        return [unknown_key(path, data, place)]
    document = parse_yaml(text)
    if document.faults:
        return [Problem(dotted(path), place, fault.found, fault.allowed) for fault in document.faults]
    section = data
    for part in path[:-1]:
        if section.get(str(part)) is None:
            section[str(part)] = {}
        section = section[str(part)]
        if not isinstance(section, dict):
            return []  # the file has a value where a section belongs: that is reported already
    section[str(path[-1])] = document.data
    places.override(path)
    return _resolve_paths(data, path, Path.cwd(), places)


def _resolve_paths(data: dict[str, Any], below: KeyPath, folder: Path, places: Places) -> list[Problem]:
    """Make every file path at or under the key path `below` absolute, in place."""
    problems = []
    for key in sorted(path_keys(), key=dotted):
        if key[: len(below)] != below:
            continue
        section, value = value_at(key[:-1], data), value_at(key, data)
        items = value if isinstance(value, list) else [value]
        for index, item in enumerate(items):
            if not isinstance(item, str):
                continue  # the model says what is wrong with it
            item_key = (*key, index) if isinstance(value, list) else key
            fault = _path_fault(item)
            if fault:
                allowed = "a path, absolute or relative, or ~/... for the home folder"
                problems.append(Problem(dotted(item_key), places.of(item_key), fault, allowed))
            else:
                items[index] = os.path.normpath(folder / Path(item).expanduser())
        section_value = items if isinstance(value, list) else items[0]
        if isinstance(section, dict) and key[-1] in section:
            section[str(key[-1])] = section_value
    return problems


def _path_fault(text: str) -> str:
    if not text.strip():
        return "an empty path"
    if text.startswith("$") or "${" in text:
        return f'"{text}": variables are not expanded here (the shell expands them in --set)'
    try:
        Path(text).expanduser()
    except RuntimeError:
        return f'"{text}": no such user'
    return ""


def _read(path: Path) -> str:
    """The text of a configuration file; ConfigError where there is none."""
    limit = 4 * MAX_CHARACTERS
    try:
        if not path.is_file():
            raise ConfigError(str(path), [_no_file(path)])
        with path.open("rb") as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        problem = Problem("", str(path), f"a file that cannot be read: {error.strerror}", "a YAML file")
        raise ConfigError(str(path), [problem]) from error
    if len(content) > limit:
        raise ConfigError(str(path), [Problem("", str(path), f"more than {limit} bytes", "a page of YAML")])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = Problem("", f"{path}:{line}", f"the byte 0x{content[error.start]:02x}", "text in UTF-8")
        raise ConfigError(str(path), [problem]) from error


def _no_file(path: Path) -> Problem:
    """Why `path` is no file, and what lies there instead."""
    folder = path if path.is_dir() else path.parent
    names = (
        sorted(file.name for file in folder.iterdir() if file.suffix in (".yaml", ".yml")) if folder.is_dir() else []
    )
    listed = f"a YAML file; {folder} has {', '.join(names)}" if names else "a YAML file"
    if path.is_dir():
        return Problem("", str(path), "a folder", listed)
    if path.exists():
        return Problem("", str(path), "no regular file (a device or pipe)", listed)
    nearest = nearest_value(path.name, names)
    return Problem("", str(path), "no such file", listed, nearest=str(folder / nearest) if nearest else "")
