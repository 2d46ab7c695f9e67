"""Verbs that look and measure: doctor, model describe, bench simulate, shards."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stemdl.cli_run import load, make_console
from stemdl.errors import UserError


def doctor(arguments: argparse.Namespace) -> int:
    """`stemdl doctor`."""
    from stemdl.doctor import as_json, examine

    answers = examine(arguments.folder)
    marks = {"ok": "", "note": "note: ", "warning": "WARNING: "}
    for answer in answers:
        for number, line in enumerate(answer.lines):
            print(f"{answer.key if number == 0 else '':<10}{line.fact}\n{'':<12}→ {marks[line.level]}{line.follows}")
    _write_json(arguments.json, as_json(answers))
    return 0


def describe_model(arguments: argparse.Namespace) -> int:
    """`stemdl model describe FILE`."""
    from stemdl.models.describe import describe, format_description

    description = describe(load(arguments))
    print(format_description(description))
    _write_json(arguments.json, description.as_dict())
    return 0


def bench_simulate(arguments: argparse.Namespace) -> int:
    """`stemdl bench simulate FILE`."""
    from stemdl.bench.simulate import bench_simulate as measure
    from stemdl.bench.simulate import format_bench
    from stemdl.progress import choose_progress

    figures = measure(load(arguments), progress=choose_progress(make_console()))
    print(format_bench(figures))
    _write_json(arguments.json, figures.as_dict())
    return 0


def list_shards(arguments: argparse.Namespace) -> int:
    """`stemdl shards list PATH`."""
    from stemdl.shards import read_manifest

    content: dict[str, Any] = {}
    for folder in _shard_folders(arguments.folder):
        entries = read_manifest(folder)
        for entry in entries:
            print(
                f"{folder / entry.file}  {entry.count} samples  {entry.bytes / 1e6:.1f} MB  sha256 {entry.sha256[:12]}"
            )
        print(f"{folder}: {len(entries)} shards, {sum(entry.count for entry in entries)} samples")
        content[str(folder)] = [dataclasses.asdict(entry) for entry in entries]
    _write_json(arguments.json, {"folders": content})
    return 0


def verify_shards(arguments: argparse.Namespace) -> int:
    """`stemdl shards verify PATH`: exit code 2 with the names of all that is damaged."""
    from stemdl.shards import ShardError, ShardSet

    problems: dict[str, str | None] = {}
    for folder in _shard_folders(arguments.folder):
        try:
            with ShardSet(folder, verify="hash") as shards:
                print(f"{folder}: {len(shards.entries)} shards, {len(shards)} samples, every sha256 agrees")
            problems[str(folder)] = None
        except ShardError as error:
            problems[str(folder)] = str(error)
    _write_json(arguments.json, {"folders": problems})
    damaged = [text for text in problems.values() if text is not None]
    if damaged:
        raise ShardError("; ".join(damaged))
    return 0


def _shard_folders(top: Path) -> list[Path]:
    """Folders with a manifest: this one, or those directly below."""
    if not top.is_dir():
        raise UserError(f"{top}: no such folder")
    folders = [folder for folder in (top, *sorted(top.iterdir())) if (folder / "manifest.jsonl").is_file()]
    if not folders:
        raise UserError(f"{top}: no manifest.jsonl here or one folder below: no shard is sealed in it")
    return folders


def _write_json(path: Path | None, content: Mapping[str, Any]) -> None:
    if path is None:
        return
    from stemdl.atomic_files import replace_atomically

    try:
        replace_atomically(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise UserError(f"--json {path}: cannot be written ({error.strerror})") from error
