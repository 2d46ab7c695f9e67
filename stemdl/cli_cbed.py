"""`stemdl cbed write | list | show`: files laid out as the public CBED database of 2019."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemdl.cli_arguments import check_output_file, make_output_folder, write_json
from stemdl.errors import UserError

if TYPE_CHECKING:
    from stemdl.shards.cbed_layout import CbedFile, CbedSample

_SHOWN = 10  # of a long list
_NO_SAMPLE = "no group is called sample_<material>_<energy>"


def write_cbed(arguments: argparse.Namespace) -> int:
    """`stemdl cbed write FILE -o FOLDER`: exit code 3 where a crystal could not be simulated."""
    from data_gen.cbed import ENERGIES_KEV, CbedOptions
    from data_gen.cbed_files import write_files
    from stemdl.cli_run import load, make_console, reading_shown
    from stemdl.launch import allowed_cores, simulation_ranks
    from stemdl.progress import choose_progress

    rank = simulation_ranks(os.environ)
    config = load(arguments)
    make_output_folder(arguments.output, "-o")
    console = make_console()
    with reading_shown(console):
        summary = write_files(
            config,
            arguments.output,
            CbedOptions(arguments.energies or ENERGIES_KEV, arguments.overlap),
            crystals=arguments.crystals,
            materials_per_file=arguments.materials_per_file,
            workers=arguments.workers or (allowed_cores() if rank is None else 1),
            rank=rank,
            progress=choose_progress(console),
        )
    here = f"{len(summary.present)} were there already" if summary.present else "none was there before"
    print(f"{arguments.output}: wrote {len(summary.written)} files with {summary.samples} samples; {here}")
    for kind, pairs in (("refused", summary.refused), ("FAILED", summary.failed)):
        for name, reason in pairs[:_SHOWN]:
            print(f"  {kind}: {name}: {reason}")
        if len(pairs) > _SHOWN:
            print(f"  {kind}: {len(pairs) - _SHOWN} more: {', '.join(name for name, _ in pairs[_SHOWN:])}")
    return 3 if summary.failed else 0


def list_cbed(arguments: argparse.Namespace) -> int:
    """`stemdl cbed list PATH`: exit code 2 where a file is not laid out so, with the names of all."""
    from stemdl.shards.cbed_layout import CbedError, CbedFile

    content: dict[str, Any] = {}
    problems: list[str] = []
    for path in _files(arguments.path):
        try:
            with CbedFile(path) as file:
                if not file.names:
                    raise CbedError(f"{path}: {_NO_SAMPLE}")
                content[str(path)] = _summary(file, problems, check=arguments.check)
        except CbedError as error:
            problems.append(str(error))
            continue
        print(f"{path}: {_in_words(content[str(path)])}")
    total = sum(summary["samples"] for summary in content.values())
    print(f"{arguments.path}: {len(content)} files, {total} samples")
    write_json(arguments.json, {"files": content, "problems": problems})
    if problems:
        raise CbedError(problems[0] if len(problems) == 1 else f"{len(problems)} problems:\n  " + "\n  ".join(problems))
    return 0


def show_cbed(arguments: argparse.Namespace) -> int:
    """`stemdl cbed show FILE`: one sample as text, and as a picture if asked for."""
    from stemdl.shards.cbed_layout import CbedError, CbedFile

    if _existing(arguments.path).is_dir():
        raise UserError(f"{arguments.path}: a folder; give a file")
    check_output_file(arguments.output, "-o")
    with CbedFile(arguments.path) as file:
        if not file.names:
            raise CbedError(f"{arguments.path}: {_NO_SAMPLE}")
        name = arguments.sample or file.names[0]
        sample = file.sample(name)
    text = "\n".join(f"{label:<17}{value}" for label, value in _lines(sample))
    print(f"{arguments.path}, {name}\n{text}")
    if arguments.output is not None:
        from stemdl.report.shard_picture import save_cbed_picture

        save_cbed_picture(arguments.output, sample, f"{name}: {sample.material or 'unnamed'}", text)
        print(f"picture: {arguments.output}")
    return 0


def _existing(path: Path) -> Path:
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    return path


def _files(path: Path) -> list[Path]:
    if not _existing(path).is_dir():
        return [path]
    files = sorted(file for file in path.glob("*.h5") if not file.name.startswith("."))  # those are unfinished
    if not files:
        raise UserError(f"{path}: no file that ends in .h5 in this folder")
    return files


def _summary(file: CbedFile, problems: list[str], *, check: bool) -> dict[str, Any]:
    """Counts of a file; what is wrong with single samples goes to `problems`. Of patterns the first sample's are read,
    with `check` all.
    """
    from stemdl.shards.cbed_layout import CbedError

    sets: dict[str, set[Any]] = {key: set() for key in ("material", "formula", "space_group", "energy_keV")}
    shapes: set[tuple[int, ...]] = set()
    missing: set[str] = set()
    for name in file.names:
        try:
            attributes = file.attributes_of(name)
            shapes.add(file.shape_of(name))
            missing.update(file.missing_from(attributes))
            if check or name == file.names[0]:  # without --check one of each, which is quick, and what `show` shows
                file.sample(name)
        except CbedError as error:
            problems.append(str(error))
            continue
        for key, values in sets.items():
            if key in attributes:
                values.add(attributes[key])
    return {
        "samples": len(file),
        "materials": len(sets["material"]),
        "formulas": len(sets["formula"]),
        "space_groups": len(sets["space_group"]),
        "energies_kev": sorted(sets["energy_keV"]),
        "shapes": sorted(map(list, shapes)),
        "missing_attributes": sorted(missing),
        "ignored": file.ignored,
    }


def _in_words(summary: dict[str, Any]) -> str:
    energies = ", ".join(f"{energy:g}" for energy in summary["energies_kev"])
    shapes = " and ".join("x".join(map(str, shape)) for shape in summary["shapes"])
    text = (
        f"{summary['samples']} samples of {summary['materials']} materials, {summary['space_groups']} space groups, "
        f"{energies or '?'} keV, {shapes or 'no patterns'}"
    )
    if summary["missing_attributes"]:
        text += f"; without {', '.join(summary['missing_attributes'])}"
    return text + (f"; not samples: {', '.join(summary['ignored'][:_SHOWN])}" if summary["ignored"] else "")


def _lines(sample: CbedSample) -> Iterator[tuple[str, str]]:
    yield "material", f"{sample.material or '?'}, {sample.formula or '?'}"
    number = sample.space_group_number
    yield "space group", "not known" if number is None else str(number)
    if sample.energy_kev is not None:
        yield "energy", f"{sample.energy_kev:g} keV"
    if sample.abc_angstrom is not None:
        yield "a, b, c", f"{', '.join(f'{length:.4f}' for length in sample.abc_angstrom)} Å"
    if sample.angles_degree is not None:
        yield "α, β, γ", f"{', '.join(f'{angle:.2f}' for angle in sample.angles_degree)}°"
    for index, pattern in enumerate(sample.cbed_stack):
        parts = [f"sum {pattern.sum(dtype='f8'):.5f}, brightest pixel {pattern.max():.3g}"]
        if sample.z_dirs is not None:
            parts.insert(0, f"beam along [{' '.join(f'{component:.4g}' for component in sample.z_dirs[index])}]")
        if sample.d_hkls_angstrom is not None:
            parts.append(f"d {sample.d_hkls_angstrom[index]:.4f} Å")
        if sample.semi_angles_rad is not None:
            parts.append(f"semi-angle {1e3 * sample.semi_angles_rad[index]:.3f} mrad")
        yield f"orientation {index}", ", ".join(parts)
    if sample.missing:
        yield "missing", ", ".join(sample.missing)
