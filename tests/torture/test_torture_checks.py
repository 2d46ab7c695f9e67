"""The campaign's own checks: each of them finds what it is there to find."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stemdl.atomic_files import sha256_file
from stemdl.shards import ShardSet
from tests.small_run import Arrays
from tests.small_shards import CONFIG_HASH, fill, flip
from tests.torture.campaign import Case, Kind, Result, plan
from tests.torture.checks import (
    check_complete,
    check_kept,
    check_read,
    check_said,
    check_sound,
    check_tidy,
    sealed,
)
from tests.torture.faults import KINDS
from tests.torture.report import as_markdown, as_table
from tests.torture.scene import PARTS, CampaignFailure, Said


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two parts with two shards each."""
    for part in PARTS:
        fill(tmp_path / "run" / "shards" / part, range(4))
    return tmp_path / "run"


@pytest.fixture
def reference(run: Path) -> Arrays:
    """Its samples."""
    arrays: Arrays = {}
    for part in PARTS:
        with ShardSet(run / "shards" / part) as shards:
            for index, item in enumerate(shards.items):
                sample = shards.item(index)
                arrays[part, item] = (
                    sample.amplitude.tobytes(),
                    sample.potential.tobytes(),
                    json.dumps(sample.parameters, sort_keys=True),
                    json.dumps(sample.provenance, sort_keys=True),
                )
    return arrays


def first_shard(run: Path) -> Path:
    return run / "shards" / "train" / "shard-00000-00000.h5"


@pytest.mark.parametrize("harm", [lambda path: path.unlink(), flip, lambda path: path.write_bytes(b"")])
def test_a_lost_or_changed_shard_is_found(run: Path, harm: Callable[[Path], object]) -> None:
    folders = [run / "shards" / part for part in PARTS]
    before = sealed(*folders)
    assert len(before) == 4
    check_kept(before, *folders)
    check_sound(*folders)
    harm(first_shard(run))
    with pytest.raises(CampaignFailure, match=r"shard-00000-00000\.h5: was sealed, and is lost or changed"):
        check_kept(before, *folders)
    with pytest.raises(CampaignFailure, match="not what its line says"):
        check_sound(*folders)
    check_kept(before, *folders, harmed=[first_shard(run)])


def test_a_shard_that_only_has_another_place_is_kept(run: Path, tmp_path: Path) -> None:
    folders = [run / "shards" / part for part in PARTS]
    before = sealed(*folders)
    shutil.move(folders[0], tmp_path / "node")
    with pytest.raises(CampaignFailure):
        check_kept(before, tmp_path / "node", folders[1])
    check_kept(before, tmp_path / "node", folders[1], anywhere=True)


def test_an_incomplete_or_wrong_set_is_found(run: Path, reference: Arrays) -> None:
    check_complete(run, reference)
    with pytest.raises(CampaignFailure, match=r"incomplete: \[\('train', 9\)\]"):
        check_complete(run, {**reference, ("train", 9): reference["train", 0]})
    with pytest.raises(CampaignFailure, match="item 2 is not the reference's"):
        check_complete(run, {**reference, ("train", 2): reference["train", 1]})
    (run / "shards" / "train" / ".tmp-00000-00005-host-1.h5").touch()
    with pytest.raises(CampaignFailure, match="left behind"):
        check_complete(run, reference)
    with pytest.raises(CampaignFailure, match="left behind"):
        check_tidy(run / "shards" / "train")


def test_a_wrong_sample_that_is_read_without_a_word_is_found(run: Path, reference: Arrays) -> None:
    folder = run / "shards" / "train"
    check_read(folder, "train", reference, harmed=(), must_refuse=False, digest=CONFIG_HASH)
    with pytest.raises(CampaignFailure, match="item 3 was read"):
        wrong = {**reference, ("train", 3): reference["train", 0]}
        check_read(folder, "train", wrong, harmed=(), must_refuse=False, digest=CONFIG_HASH)
    with pytest.raises(CampaignFailure, match="read without a word"):
        check_read(folder, "train", reference, harmed=[first_shard(run)], must_refuse=True, digest=CONFIG_HASH)
    flip(first_shard(run))
    check_read(folder, "train", reference, harmed=[first_shard(run)], must_refuse=True, digest=CONFIG_HASH)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (Said("stemdl", 1, "rank 3: no space"), "exit code 1"),
        (Said("stemdl", 2, "Traceback (most recent call last)\nrank 3"), "a traceback"),
        (Said("stemdl", 2, "rank 4: no space"), "nothing says 'rank 3'"),
    ],
)
def test_a_fault_without_its_name_is_found(said: Said, why: str) -> None:
    with pytest.raises(CampaignFailure, match=why):
        check_said(said, {0, 2}, "rank 3")


def test_the_plan_has_every_kind_and_so_many_faults_as_asked_for() -> None:
    for faults in (50, 200, 400):
        cases = plan(KINDS, faults)
        assert sum(case.count for case in cases) >= faults
        assert [case.first for case in cases] == [
            1 + sum(other.count for other in cases[:index]) for index in range(len(cases))
        ]
        assert {case.kind.name for case in cases} == {kind.name for kind in KINDS}
    assert len(KINDS) == len({kind.name for kind in KINDS})
    assert sum(kind.full for kind in KINDS) >= 200


def test_the_table_counts_what_was_injected_and_survived() -> None:
    kind = Kind("shard eaten", lambda scene: None, 2)
    results = [
        Result(Case(kind, 1, 1, 0, False), ["one"], 1, 2.0),
        Result(Case(kind, 2, 1, 1, False), ["another"], 0, 3.0, failure="it was gone"),
        Result(Case(Kind("rank lost", lambda scene: None, 1), 3, 1, 0, False), skipped="no mpirun"),
    ]
    assert re.search(r"^shard eaten +2 +1 +5.0$", as_table(results, 5.0), re.MULTILINE)
    markdown = as_markdown(results, 60.0, "make torture", "2026-12-01")
    assert "| shard eaten | 2 | 1 | 5 |" in markdown
    assert "| rank lost (skipped: no mpirun) | 0 | 0 | 0 |" in markdown
    assert "2 faults injected, 1 survived, 1.0 min" in markdown


def test_sealed_takes_what_is_whole_alone(run: Path) -> None:
    folder = run / "shards" / "train"
    flip(first_shard(run))
    assert set(sealed(folder)) == {folder / "shard-00000-00001.h5"}
    assert sealed(folder)[folder / "shard-00000-00001.h5"] == sha256_file(folder / "shard-00000-00001.h5")
