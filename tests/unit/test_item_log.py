"""Per-rank logs: whole lines whatever happened before, and what the last one says of a rank that was killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_gen.sharing.item_log import ItemLog, cut_off_ranks, log_path


def lines(folder: Path, rank: int) -> list[dict[str, object]]:
    return [json.loads(line) for line in log_path(folder, rank).read_text().splitlines()]


def write(folder: Path, rank: int, *events: str) -> None:
    with ItemLog(folder, rank) as log:
        for event in events:
            log.write(event, part="train", item=5, crystal="cif:Ga₂O₃")


def test_every_line_is_one_of_json_and_reaches_the_system_at_once(tmp_path: Path) -> None:
    log = ItemLog(tmp_path / "log", 3)
    log.write("start", host="node7")
    log.write("item", part="train", item=5)
    first, second = lines(tmp_path / "log", 3)
    log.close()
    assert (first["event"], first["host"]) == ("start", "node7")
    assert (second["event"], second["item"]) == ("item", 5)
    assert isinstance(first["time"], float)
    assert log_path(tmp_path / "log", 3).name == "simulate-rank-00003.jsonl"


def test_ranks_that_were_cut_off_are_named_once_with_what_they_did(tmp_path: Path) -> None:
    write(tmp_path, 0, "start", "item", "made", "end")
    write(tmp_path, 1, "start", "item", "made", "item")
    write(tmp_path, 2, "start")
    write(tmp_path, 12, "start", "item", "made")
    (tmp_path / "other.txt").write_text("nothing of ours")
    assert cut_off_ranks(tmp_path) == {1: "making train item 5 (cif:Ga₂O₃)", 2: 'after "start"', 12: 'after "made"'}
    assert cut_off_ranks(tmp_path) == {}
    assert lines(tmp_path, 1)[-1]["event"] == "cut off"
    write(tmp_path, 1, "start", "item")
    assert list(cut_off_ranks(tmp_path)) == [1], "cut off once more"


@pytest.mark.parametrize("torn", ['{"time": 1.0, "ev', '{"time": 1.0, "event": "made"}', "[1, 2]", "\x00\x00\x00"])
def test_a_torn_line_costs_itself_alone(tmp_path: Path, torn: str) -> None:
    """A full disk tears one: what is written later has lines of its own."""
    write(tmp_path, 0, "start", "item")
    with log_path(tmp_path, 0).open("a") as stream:
        stream.write(torn)
    assert list(cut_off_ranks(tmp_path)) == [0]
    assert cut_off_ranks(tmp_path) == {}, "told once"
    write(tmp_path, 0, "start", "end")
    assert cut_off_ranks(tmp_path) == {}
    whole = [line for line in log_path(tmp_path, 0).read_text().splitlines() if line.endswith('"cif:Ga₂O₃"}')]
    assert [json.loads(line)["event"] for line in whole] == ["start", "item", "start", "end"]


def test_a_long_log_is_read_from_its_end(tmp_path: Path) -> None:
    write(tmp_path, 0, *["made"] * 2000, "item")
    assert cut_off_ranks(tmp_path) == {0: "making train item 5 (cif:Ga₂O₃)"}


def test_without_logs_nobody_was_cut_off(tmp_path: Path) -> None:
    assert cut_off_ranks(tmp_path / "none") == {}
    ItemLog(tmp_path, 0).close()
    assert cut_off_ranks(tmp_path) == {}, "an empty log says nothing"
