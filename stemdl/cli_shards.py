"""`stemdl shards list | verify | show | merge | repair`."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemdl.cli_arguments import check_output_file, write_json
from stemdl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stemdl.shards.inspect import FolderReport
    from stemdl.shards.merge import MergeReport
    from stemdl.shards.summary import SetSummary

_MANIFEST = "manifest.jsonl"
_MOST_RANKS = 8  # with a line each
_SHOWN = 10  # of a long list


def list_shards(arguments: argparse.Namespace) -> int:
    """`stemdl shards list PATH`."""
    from stemdl.shards import read_manifest
    from stemdl.shards.summary import summarise

    shards: dict[str, Any] = {}
    totals: dict[str, Any] = {}
    for folder in _shard_folders(arguments.folder):
        entries = read_manifest(folder)
        if not arguments.short:
            for entry in entries:
                size = f"{entry.count} samples  {entry.bytes / 1e6:.1f} MB"
                print(f"{folder / entry.file}  {size}  sha256 {entry.sha256[:12]}  items {_runs(entry.items)}")
        summary = summarise(folder, entries, open_shards=not arguments.short)
        print("\n".join(_summary_lines(folder, summary)))
        shards[str(folder)] = [dataclasses.asdict(entry) for entry in entries]
        totals[str(folder)] = summary.as_dict()
    write_json(arguments.json, {"folders": shards, "summary": totals})
    return 0


def verify_shards(arguments: argparse.Namespace) -> int:
    """`stemdl shards verify PATH`: exit code 2 with the names of all that is damaged."""
    from stemdl.shards import ShardError
    from stemdl.shards.inspect import inspect_folder

    reports = []
    for folder in _folders_of_shards(arguments.folder):
        with _progress("verify", _line_count(folder)) as on_shard:
            report = inspect_folder(folder, deep=arguments.deep, on_shard=on_shard)
        _tell_report(report, deep=arguments.deep)
        reports.append(report)
    write_json(
        arguments.json,
        {
            "folders": {str(report.folder): "; ".join(report.problems) or None for report in reports},
            "details": {str(report.folder): _report_as_dict(report) for report in reports},
        },
    )
    problems = [problem for report in reports for problem in report.problems]
    if problems:
        shards = sum(report.shards for report in reports)
        fields = sum(len(shard.items) for report in reports for shard in report.damaged)
        listed = "\n  ".join(problems)
        raise ShardError(f"problems: {len(problems)}, shards: {shards}, fields damaged: {fields}\n  {listed}")
    return 0


def show_sample(arguments: argparse.Namespace) -> int:
    """`stemdl shards show PATH`: one sample as text, and as a picture if asked for."""
    from stemdl.shards import ShardSet
    from stemdl.shards.describe import describe_sample

    if arguments.folder.is_file():
        raise UserError(f"{arguments.folder}: a file; give its folder, and the sample by --item or --index")
    check_output_file(arguments.output, "-o")
    folders = _shard_folders(arguments.folder)
    if len(folders) > 1:
        raise UserError(
            f"{arguments.folder}: several folders of shards: {', '.join(map(str, folders))}; give one of them"
        )
    with ShardSet(folders[0], on_damage="leave_out") as shards:
        index = _index_of(arguments, shards.items)
        sample, axes = shards.item(index), shards.axes
    text = describe_sample(sample, axes)
    print(f"{folders[0]}: sample {index} of {len(shards)}\n{text}")
    if arguments.output is not None:
        from stemdl.report.shard_picture import save_sample_picture

        save_sample_picture(arguments.output, sample, axes, text)
        print(f"picture: {arguments.output}")
    return 0


def merge_shards(arguments: argparse.Namespace) -> int:
    """`stemdl shards merge DEST SRC...`: exit code 3 where something of the sources is damaged."""
    from stemdl.shards.manifest import scan_manifest
    from stemdl.shards.merge import merge_folders
    from stemdl.shards.merge_plan import check_alike, pair_folders

    pairs = pair_folders(arguments.destination, arguments.sources)
    for destination, sources in pairs:  # of all, before anything is merged into the first
        check_alike(destination, [(source, scan_manifest(source).entries) for source in sources])
    reports = []
    for destination, sources in pairs:
        with _progress("merge", sum(map(_line_count, sources))) as on_shard:
            report = merge_folders(destination, sources, hard_links=not arguments.copy, on_shard=on_shard)
        _tell_merge(report)
        reports.append(report)
    write_json(arguments.json, {"folders": {str(one.destination): _plain(one) for one in reports}})
    return 3 if any(report.damaged for report in reports) else 0


def repair_shards(arguments: argparse.Namespace) -> int:
    """`stemdl shards repair PATH`: exit code 3 where something had to be left alone."""
    from stemdl.shards.faults import fields_of
    from stemdl.shards.repair import repair_folder

    reports = []
    for folder in _folders_of_shards(arguments.folder):
        with _progress("check", _line_count(folder)) as on_shard:
            report = repair_folder(folder, dry_run=arguments.dry_run, on_shard=on_shard)
        would = "would be done" if arguments.dry_run else "done"
        print(f"{folder}: {f'{len(report.actions)} things {would}' if report.actions else 'nothing to repair'}")
        for action in report.actions:
            print(f"  {action}")
        for left in report.left_alone:
            print(f"  LEFT ALONE: {left}")
        if report.items_lost:
            print(f"  `stemdl simulate` makes {fields_of(report.items_lost)} again")
        reports.append(report)
    write_json(arguments.json, {"folders": {str(report.folder): _plain(report) for report in reports}})
    return 3 if any(report.left_alone for report in reports) else 0


def _shard_folders(top: Path) -> list[Path]:
    """Folders with a manifest: this one, or those directly below."""
    folders = [folder for folder in (_existing(top), *sorted(top.iterdir())) if (folder / _MANIFEST).is_file()]
    if not folders:
        raise UserError(f"{top}: no {_MANIFEST} here or one folder below: no shard is sealed in it")
    return folders


def _folders_of_shards(top: Path) -> list[Path]:
    """Folders with a manifest, or with shards that have lost it: this one, or those directly below."""
    from stemdl.shards.repair import DAMAGED_FOLDER, is_shard_folder

    below = (folder for folder in sorted(_existing(top).iterdir()) if folder.is_dir() and folder.name != DAMAGED_FOLDER)
    folders = [folder for folder in (top, *below) if is_shard_folder(folder)]
    if not folders:
        raise UserError(f"{top}: no {_MANIFEST} and no shard here or one folder below")
    return folders


def _existing(top: Path) -> Path:
    if not top.is_dir():
        raise UserError(f"{top}: {'a file, no folder' if top.exists() else 'no such folder'}")
    return top


@contextmanager
def _progress(stage: str, total: int) -> Iterator[Callable[[int], None]]:
    """What is told of each shard that is done."""
    from stemdl.cli_run import make_console
    from stemdl.progress import choose_progress

    progress = choose_progress(make_console())
    progress.start(stage, total, "shards")
    try:
        yield progress.advance
    finally:
        progress.finish()


def _line_count(folder: Path) -> int:
    from stemdl.shards.manifest import scan_manifest

    return len(scan_manifest(folder).entries)


def _index_of(arguments: argparse.Namespace, items: list[int]) -> int:
    if arguments.item is None:
        index = int(arguments.index or 0)
        if index >= len(items):
            raise UserError(f"--index {index}: the set has {len(items)} samples, 0 to {len(items) - 1}")
        return index
    if arguments.item not in items:
        raise UserError(f"--item {arguments.item}: not in the set, which has the items {_runs(items)}")
    return items.index(arguments.item)


def _runs(items: list[int]) -> str:
    from stemdl.shards.faults import item_runs

    return item_runs(items)


def _summary_lines(folder: Path, summary: SetSummary) -> Iterator[str]:
    yield f"{folder}: {summary.shards} shards, {summary.samples} samples, {summary.bytes / 1e6:.1f} MB"
    of_part = f", part {' and '.join(summary.parts)}" if summary.parts else ""
    yield f"  config hash {' and '.join(summary.config_hashes) or 'none'}{of_part}"
    shares = sorted(summary.ranks.items())
    for rank, share in shares if len(shares) <= _MOST_RANKS else ():
        yield f"  rank {rank}: {share.shards} shards, {share.samples} samples, {share.bytes / 1e6:.1f} MB"
    if len(shares) > _MOST_RANKS:
        by_samples = sorted(shares, key=lambda one: one[1].samples)
        (fewest, least), (most_rank, most) = by_samples[0], by_samples[-1]
        middle = by_samples[len(shares) // 2][1].samples
        yield (
            f"  {len(shares)} ranks ({_runs([rank for rank, _ in shares])}): {least.samples} (rank {fewest}) to "
            f"{most.samples} (rank {most_rank}) samples, median {middle}"
        )
    if summary.crystals:
        counts = sorted(summary.crystals.values())
        span = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        yield f"  {len(counts)} crystals of {len(summary.materials)} materials, {span} samples of each crystal"
    for word, wanted in (("the same in all", True), ("from ... to", False)):
        chosen = [(name, ends) for name, ends in summary.parameters.items() if (ends[0] == ends[1]) is wanted]
        if chosen:
            yield f"  parameters, {word}: " + "; ".join(_range(name, *ends) for name, ends in chosen)
    for reason in summary.not_read[:_SHOWN]:
        yield f"  NOT READ: {reason}"
    if len(summary.not_read) > _SHOWN:
        yield f"  NOT READ: {len(summary.not_read) - _SHOWN} more; `stemdl shards verify` names them all"


def _range(name: str, low: float, high: float) -> str:
    return f"{name} {low:.6g}" if low == high else f"{name} {low:.6g} to {high:.6g}"


def _tell_report(report: FolderReport, *, deep: bool) -> None:
    from stemdl.shards.inspect import duplicates_in_words

    state = f"{report.folder}: {report.shards} shards, {report.samples} samples"
    checked = "every sha256 agrees" + (", every sample is sound" if deep else "")
    print(f"{state}, {checked}" if report.is_sound else f"{state} are whole, {len(report.problems)} PROBLEMS")
    for odd in report.oddities:
        print(f"  note: {odd.file}: {odd.what}")
    if report.duplicates:
        print(f"  note: {duplicates_in_words(report.duplicates)}")


def _report_as_dict(report: FolderReport) -> dict[str, Any]:
    return {
        "shards": report.shards,
        "samples": report.samples,
        "bytes": report.bytes,
        "config_hash": report.config_hash,
        "damaged": [dataclasses.asdict(shard) for shard in report.damaged],
        "manifest_faults": report.manifest_faults,
        "duplicates": {str(item): files for item, files in report.duplicates.items()},
        "oddities": [dataclasses.asdict(odd) for odd in report.oddities],
    }


def _tell_merge(report: MergeReport) -> None:
    from stemdl.shards.faults import fields_of

    amount = f"{report.shards} shards, {report.samples} samples, {report.bytes / 1e6:.1f} MB"
    print(
        f"{report.destination}: merged {amount} ({report.linked} as hard links, {report.shards - report.linked} copied)"
    )
    if report.present:
        print(f"  there already: {report.present} shards")
    for path, name in report.renamed[:_SHOWN]:
        print(f"  renamed: {path} is {name}")
    if len(report.renamed) > _SHOWN:
        print(f"  renamed: {len(report.renamed) - _SHOWN} more, which --json lists")
    if report.duplicates:
        files = list(dict.fromkeys(report.duplicates.values()))
        more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
        twice = fields_of(sorted(report.duplicates))
        print(f"  left out, since they are there: {twice}, of {', '.join(files[:_SHOWN])}{more}")
    for note in report.notes:
        print(f"  note: {note}")
    for reason in report.damaged:
        print(f"  DAMAGED, not merged: {reason}")


def _plain(report: Any) -> Mapping[str, Any]:
    """A report's fields as JSON has them."""
    plain = {}
    for name, value in dataclasses.asdict(report).items():
        if isinstance(value, Path):
            value = str(value)
        elif isinstance(value, frozenset):
            value = sorted(value)
        plain[name] = value
    return plain
