"""After a repair `stemdl simulate` makes what is missing, and the set is the one that an undisturbed run makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_gen.generate import simulate
from stemdl.cli import main
from stemdl.progress import SilentProgress
from stemdl.shards import read_manifest
from tests.small_run import content, make_shards, small_config

pytestmark = pytest.mark.multiproc


def test_a_damaged_run_is_mended_and_completed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "hurt").mkdir()
    whole, config = small_config(tmp_path / "whole"), small_config(tmp_path / "hurt")
    make_shards(whole)
    make_shards(config)
    shards = config.run.folder / "shards"
    train, held_out = shards / "train", shards / "held_out"
    first, second, third = (train / entry.file for entry in read_manifest(train)[:3])
    bytes_of = bytearray(first.read_bytes())
    bytes_of[len(bytes_of) // 2] ^= 1
    first.write_bytes(bytes_of)
    second.write_bytes(second.read_bytes()[:-1])
    third.unlink()
    (train / ".tmp-00007-00000-host-1.h5").write_bytes(b"half a shard")
    (train / ".lock-00007").touch()
    (held_out / "manifest.jsonl").write_bytes(b"garbage\n")

    assert main(["shards", "verify", str(shards)]) == 2
    err = capsys.readouterr().err
    for path in (first, second, third, held_out / "manifest.jsonl"):
        assert str(path) in err
    assert main(["shards", "repair", str(shards)]) == 0
    assert main(["shards", "verify", str(shards), "--deep"]) == 0
    assert not simulate(config, progress=SilentProgress()).failed
    assert main(["shards", "verify", str(shards), "--deep"]) == 0
    assert content(config.run.folder) == content(whole.run.folder)
