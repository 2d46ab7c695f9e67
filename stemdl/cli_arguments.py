"""The pieces that the verbs' command lines are put together from."""

from __future__ import annotations

import argparse
import errno
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stemdl.errors import UserError

Verbs = argparse._SubParsersAction  # argparse gives this class no public name


def verb(verbs: Verbs[argparse.ArgumentParser], name: str, text: str, example: str) -> argparse.ArgumentParser:
    """Add a verb with its help and an example."""
    return verbs.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"example: stemdl {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def takes_config(parser: argparse.ArgumentParser) -> None:
    """FILE and --set."""
    parser.add_argument("file", metavar="FILE", type=Path, help="YAML file, see configs/")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another value for one key, such as train.lr=1e-3; may be repeated",
    )


def writes_json(parser: argparse.ArgumentParser) -> None:
    """--json FILE; `write_json` writes it."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well, under stable keys")


def write_json(path: Path | None, content: Mapping[str, Any]) -> None:
    """Write what --json asks for, if it does. Raises UserError where the file cannot be written."""
    if path is None:
        return
    from stemdl.atomic_files import replace_atomically

    try:
        replace_atomically(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise UserError(f"--json {path}: cannot be written ({error.strerror})") from error


# What the system says of a path that cannot be: nothing there, a file in the way, a folder, too long, links in a ring.
_NO_SUCH_PATH = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
)
_OPTIONS = {"output": "-o", "json": "--json", "picture": "--picture", "folder": "PATH", "path": "PATH", "file": "FILE",
            "destination": "DEST", "sources": "SRC", "run_folder": "run.folder",
            "cif_folders": "crystals.cif_folders"}  # fmt: skip


def given_path(arguments: argparse.Namespace, error: OSError) -> str:
    """The option or key whose path an error of the system is about: the path itself, or one above or below it.

    Empty where it is about none that the user gave, or where the system does not say that such a path cannot be.
    """
    if error.errno not in _NO_SUCH_PATH or not isinstance(error.filename, (str, os.PathLike)):
        return ""
    wrong = Path(os.path.abspath(error.filename))
    for name, value in vars(arguments).items():
        for path in value if isinstance(value, (list, tuple)) else (value,):
            if not isinstance(path, Path):
                continue
            given = Path(os.path.abspath(path))
            above = wrong in given.parents and error.errno != errno.ENOENT
            if wrong == given or above or (given in wrong.parents and not _is_folder(given)):
                return _OPTIONS.get(name, name)
    return ""


def _is_folder(path: Path) -> bool:
    """False also for a path that cannot be."""
    try:
        return path.is_dir()
    except OSError:
        return False


def check_output_file(path: Path | None, option: str) -> None:
    """Raise UserError where no file can be written at a path, before the work; leaves nothing there."""
    if path is None:
        return
    folder = path.parent
    try:
        if path.is_dir():
            raise UserError(f"{option} {path}: a folder; give the name of a file in it")
        if not folder.is_dir():
            raise UserError(
                f"{option} {path}: {folder} is {'a file' if folder.exists() else 'no folder that is there'}"
            )
        with tempfile.TemporaryFile(dir=folder):
            pass
        path.exists()
    except OSError as error:
        raise UserError(f"{option} {path}: cannot be written: {os.strerror(error.errno or 0)}") from error


def make_output_folder(folder: Path, option: str) -> None:
    """Make a folder for results, unless it is there. Raises UserError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError as error:
        raise UserError(f"{option} {folder}: a file, where a folder is needed") from error
    except OSError as error:
        raise UserError(f"{option} {folder}: cannot be written: {os.strerror(error.errno or 0)}") from error


def counts(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, such as "1,2,4"."""
    return tuple(positive(part.strip()) for part in text.split(","))


def positive(text: str) -> int:
    """A whole number of at least 1."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 1 is needed")
    return number


def not_negative(text: str) -> int:
    """A whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 0 is needed")
    return int(text)


def numbers(text: str) -> tuple[float, ...]:
    """Numbers above 0, separated by commas."""
    try:
        found = tuple(float(one) for one in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 < one < float("inf") for one in found):
        raise argparse.ArgumentTypeError(f"{text!r}: numbers above 0 are needed, separated by commas")
    return found


def words(*allowed: str) -> Callable[[str], tuple[str, ...]]:
    """Of a parser of some of these words, separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(part.strip() for part in text.split(","))
        wrong = [word for word in found if word not in allowed]
        if wrong:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r}: allowed are {', '.join(allowed)}, separated by commas")
        return found

    return parse
