"""The pieces that the verbs' command lines are put together from."""

from __future__ import annotations

import argparse
import json
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
