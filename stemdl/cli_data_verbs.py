"""The command lines of the verbs for data on the disk: shards, and the public CBED database's files."""

from __future__ import annotations

import argparse
from pathlib import Path

from stemdl.cli_arguments import Verbs, not_negative, positive, takes_config, verb, writes_json

_SHARDS, _CBED = "stemdl.cli_shards", "stemdl.cli_cbed"


def add_shards(verbs: Verbs[argparse.ArgumentParser]) -> None:
    """`stemdl shards list | verify | show | merge | repair`."""
    group = verb(
        verbs, "shards", "look at simulated shards, join and mend them", "shards verify runs/quickstart/shards"
    )
    inner = group.add_subparsers(title="verbs", metavar="VERB", required=True)
    _add_looking(inner)
    _add_changing(inner)


def _add_looking(inner: Verbs[argparse.ArgumentParser]) -> None:
    listing = verb(inner, "list", "what a folder of shards holds", "shards list runs/quickstart/shards --short")
    _takes_folder(listing)
    listing.add_argument("--short", action="store_true", help="totals alone, from the manifest; opens no shard")
    listing.set_defaults(module=_SHARDS, function="list_shards")

    check = verb(
        inner, "verify", "read every shard and compare its sha256", "shards verify runs/quickstart/shards --deep"
    )
    _takes_folder(check)
    check.add_argument("--deep", action="store_true", help="open each shard as well and check every sample's values")
    check.set_defaults(module=_SHARDS, function="verify_shards")

    show = verb(
        inner,
        "show",
        "one sample, as text and as a picture",
        "shards show runs/quickstart/shards/train --item 3 -o 3.png",
    )
    show.add_argument("folder", metavar="PATH", type=Path, help="folder with a manifest.jsonl")
    which = show.add_mutually_exclusive_group()
    which.add_argument("--item", type=not_negative, metavar="N", help="the sample with this number in the work list")
    which.add_argument("--index", type=not_negative, metavar="I", help="the I-th sample, from 0 (default: 0)")
    _draws(show)
    show.set_defaults(module=_SHARDS, function="show_sample")


def _add_changing(inner: Verbs[argparse.ArgumentParser]) -> None:
    merge = verb(
        inner, "merge", "join the shards of many folders into one", "shards merge runs/big/shards/train node-*/train"
    )
    merge.add_argument("destination", metavar="DEST", type=Path, help="folder to merge into; made if it is not there")
    merge.add_argument(
        "sources", metavar="SRC", type=Path, nargs="+", help="folder with a manifest.jsonl, or one above such"
    )
    merge.add_argument("--copy", action="store_true", help="copy files in place of hard links where those would do")
    writes_json(merge)
    merge.set_defaults(module=_SHARDS, function="merge_shards")

    repair = verb(
        inner,
        "repair",
        "set damaged shards aside and clear up after dead writers",
        "shards repair runs/big/shards --dry-run",
    )
    repair.add_argument("folder", metavar="PATH", type=Path, help="folder of shards, or one above such")
    repair.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    writes_json(repair)
    repair.set_defaults(module=_SHARDS, function="repair_shards")


def add_cbed(verbs: Verbs[argparse.ArgumentParser]) -> None:
    """`stemdl cbed write | list | show`."""
    group = verb(verbs, "cbed", "files laid out as the public CBED database of 2019", "cbed list cbed/batch_train_0.h5")
    inner = group.add_subparsers(title="verbs", metavar="VERB", required=True)

    write = verb(
        inner,
        "write",
        "simulate that database's kind of sample: three zone axes, position-averaged",
        "cbed write configs/cbed-2019.yaml -o cbed --crystals 2 --energies 100,110",
    )
    takes_config(write)
    write.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help="where the files go")
    write.add_argument(
        "--crystals", type=positive, metavar="N", help="the first N of the shuffled crystals (default: all)"
    )
    write.add_argument(
        "--energies", type=energies, metavar="KEV,...", help="beam energies in keV (default: 100,110,...,190)"
    )
    write.add_argument(
        "--overlap", type=fraction, default=0.5, metavar="F", help="semi-angle in Bragg angles at 100 keV (default 0.5)"
    )
    write.add_argument(
        "--materials-per-file", type=positive, default=16, metavar="N", help="default 16, 10 samples each"
    )
    write.add_argument("--workers", type=positive, metavar="N", help="processes, one file each (default: one per core)")
    write.set_defaults(module=_CBED, function="write_cbed")

    listing = verb(inner, "list", "what such files hold", "cbed list cbed")
    listing.add_argument("path", metavar="PATH", type=Path, help="an .h5 file, or a folder of them")
    listing.add_argument("--check", action="store_true", help="read every pattern, not only the first sample's")
    writes_json(listing)
    listing.set_defaults(module=_CBED, function="list_cbed")

    show = verb(inner, "show", "one sample, as text and as a picture", "cbed show cbed/batch_train_0.h5 -o sample.png")
    show.add_argument("path", metavar="FILE", type=Path, help="an .h5 file")
    show.add_argument("--sample", metavar="NAME", help="name of the group, such as sample_0_3 (default: the first)")
    _draws(show)
    show.set_defaults(module=_CBED, function="show_cbed")


def energies(text: str) -> tuple[float, ...]:
    """Energies in keV, separated by commas, each once."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(10 <= value <= 1500 for value in values) or len(set(values)) < len(values):
        raise argparse.ArgumentTypeError(
            f"{text!r}: different energies from 10 to 1500 keV are needed, such as 100,110"
        )
    return values


def fraction(text: str) -> float:
    """A number above 0, at most 10."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 10:
        raise argparse.ArgumentTypeError(f"{text!r}: a number above 0 and of at most 10 is needed")
    return value


def _takes_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="PATH", type=Path, help="folder with a manifest.jsonl, or one above such")
    writes_json(parser)


def _draws(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.png", help="draw a picture of it there")
