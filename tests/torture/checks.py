"""What must hold after every fault. Each check raises CampaignFailure, with what was expected and what was found."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from stemdl.atomic_files import sha256_file
from stemdl.shards import ShardError, ShardSet
from stemdl.shards.faults import Verify
from stemdl.shards.h5_read import verify_whole
from stemdl.shards.manifest import scan_manifest
from stemdl.shards.reader import OnDamage
from stemdl.shards.schema import Sample, parse_shard_name
from tests.small_run import Arrays
from tests.torture.scene import PARTS, CampaignFailure, Said

Sealed = dict[Path, str]
"""Every whole shard that a manifest names, with its sha256."""

_TRACEBACK = "Traceback (most recent call last)"
_OUR_FAULT = "This is a fault of stemdl"


def require(condition: bool, what: str) -> None:
    """Fail with the text unless the condition holds."""
    if not condition:
        raise CampaignFailure(what)


def sealed(*folders: Path) -> Sealed:
    """What is safe in the folders now: named by a sound line of the manifest, and as that says."""
    found: Sealed = {}
    for folder in folders:
        for entry in scan_manifest(folder).entries:
            path = folder / entry.file
            if path.is_file() and sha256_file(path) == entry.sha256:
                found[path] = entry.sha256
    return found


def check_kept(before: Sealed, *folders: Path, harmed: Collection[Path] = (), anywhere: bool = False) -> None:
    """Nothing sealed is lost: each shard but the harmed ones is there as it was.

    anywhere: it may have got to another of the folders, or have another name.
    """
    now = sealed(*folders)
    hashes = set(now.values())
    for path, digest in before.items():
        if path in harmed:
            continue
        kept = digest in hashes if anywhere else now.get(path) == digest
        require(kept, f"{path}: was sealed, and is lost or changed")


def check_sound(*folders: Path, harmed: Collection[Path] = ()) -> None:
    """After a kill: no line is damaged, every line has its whole file, every file with a final name is whole."""
    for folder in folders:
        scan = scan_manifest(folder)
        require(not scan.faults, f"{folder}: lines damaged by a kill: {scan.faults}")
        for entry in scan.entries:
            path = folder / entry.file
            whole = path.is_file() and sha256_file(path) == entry.sha256
            require(whole or path in harmed, f"{path}: sealed, and not what its line says")
        for path in folder.iterdir() if folder.is_dir() else ():
            if parse_shard_name(path.name) is not None and path not in harmed:
                verify_whole(path)


def same(sample: Sample, part: str, reference: Arrays) -> bool:
    """Whether a sample is the reference's, bit for bit: amplitude, potential, parameters, provenance."""
    return reference.get((part, sample.item)) == (
        sample.amplitude.tobytes(),
        sample.potential.tobytes(),
        json.dumps(sample.parameters, sort_keys=True),
        json.dumps(sample.provenance, sort_keys=True),
    )


def check_read(
    folder: Path, part: str, reference: Arrays, *, harmed: Iterable[Path], must_refuse: bool, digest: str
) -> None:
    """Nothing damaged is read: every way to load the set gives the reference's samples or names what is damaged.

    must_refuse: loading the whole set with its hashes checked, as training does, has to be refused.
    """
    names = {path.name for path in harmed}
    for verify, on_damage in (("hash", "refuse"), ("size", "refuse"), ("hash", "leave_out"), ("size", "leave_out")):
        refusal = _read_all(folder, part, reference, verify, on_damage, digest)  # type: ignore[arg-type]
        if refusal and names:
            named = any(name in refusal for name in names) or str(folder) in refusal
            require(named, f"{folder}: read with {verify}, {on_damage}: refused without naming {names}: {refusal}")
        if must_refuse and (verify, on_damage) == ("hash", "refuse"):
            require(bool(refusal), f"{folder}: {names} damaged, and the whole set was read without a word")


def _read_all(
    folder: Path, part: str, reference: Arrays, verify: Verify, on_damage: OnDamage, digest: str
) -> str:  # fmt: skip
    """Read every sample; returns what was said where something was refused."""
    said = []
    try:
        with ShardSet(folder, verify=verify, on_damage=on_damage, config_hash=digest) as shards:
            said += [left.reason for left in shards.left_out]
            for index in range(len(shards)):
                try:
                    sample = shards.item(index)
                except ShardError as error:
                    said.append(str(error))
                    continue
                right = same(sample, part, reference)
                require(right, f"{folder}: item {sample.item} was read ({verify}, {on_damage}) and is not the sample")
    except ShardError as error:
        said.append(str(error))
    return "; ".join(said)


def check_said(said: Said, codes: Collection[int], *names: str) -> None:
    """The fault is named: the exit code is one of these, the text holds each pattern, and no bare traceback."""
    show = f"\n$ {said.command}\n{said.text}-> {said.code}"
    require(said.code in codes, f"exit code {said.code}, expected one of {sorted(codes)}:{show}")
    require(_TRACEBACK not in said.text and _OUR_FAULT not in said.text, f"a traceback reached the user:{show}")
    for name in names:
        require(re.search(name, said.text) is not None, f"nothing says {name!r}:{show}")


def check_complete(run: Path, reference: Arrays, *, folders: Iterable[Path] | None = None) -> None:
    """The set is complete and equals the reference as arrays, bit for bit, with no unfinished shard beside it."""
    found: Arrays = {}
    for part, folder in zip(PARTS, folders or [run / "shards" / part for part in PARTS], strict=True):
        with ShardSet(folder, verify="hash") as shards:
            require(not shards.duplicates, f"{folder}: sealed twice: {shards.duplicates}")
            for index in range(len(shards)):
                sample = shards.item(index)
                require(same(sample, part, reference), f"{folder}: item {sample.item} is not the reference's")
                found[part, sample.item] = reference[part, sample.item]
        unfinished = sorted(path.name for path in folder.iterdir() if re.match(r"\.tmp-\d", path.name))
        require(not unfinished, f"{folder}: left behind: {unfinished}")
    missing = sorted(reference.keys() - found.keys())
    require(not missing, f"{run}: incomplete: {missing}")


def check_tidy(*folders: Path) -> None:
    """After `stemdl shards repair` nothing hidden is left: no unfinished file, no lock of a dead process."""
    for folder in folders:
        hidden = sorted(path.name for path in folder.iterdir() if path.name.startswith("."))
        require(not hidden, f"{folder}: left behind: {hidden}")
