"""What each rank did, as lines of JSON: `log/simulate-rank-RRRRR.jsonl` in the run folder.

A rank writes before it begins an item. The last line of one that was killed therefore says at what.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_TAIL_BYTES = 16384


class ItemLog:
    """The log of one rank; every line reaches the operating system at once, so it outlives a kill of the process."""

    def __init__(self, folder: Path, rank: int) -> None:
        """Open it to append. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        path = log_path(folder, rank)
        is_torn = path.is_file() and not _ends_a_line(path)
        self._stream = path.open("a", encoding="utf-8", buffering=1)
        if is_torn:  # by a full disk, for instance: the next line is to be one of its own
            self._stream.write("\n")

    def write(self, event: str, **values: object) -> None:
        """One line. Raises OSError, where the disk is full for instance."""
        line = {"time": round(time.time(), 3), "event": event, **values}
        self._stream.write(json.dumps(line, ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def log_path(folder: Path, rank: int) -> Path:
    """Where the log of a rank is."""
    return folder / f"simulate-rank-{rank:05d}.jsonl"


def cut_off_ranks(folder: Path) -> dict[int, str]:
    """Ranks whose log ends without an end, and at what they were: they were killed, or their node died.

    Each is told once: a line is added that says so. Raises OSError.
    """
    found: dict[int, str] = {}
    for path in sorted(folder.glob("simulate-rank-*.jsonl")) if folder.is_dir() else []:
        number = path.stem.rpartition("-")[2]
        last = _last_line(path)
        if not number.isdecimal() or last is None or last.get("event") in ("end", "cut off"):
            continue
        doing = f"making {last['part']} item {last['item']} ({last['crystal']})" if last.get("event") == "item" else ""
        found[int(number)] = doing or f'after "{last.get("event")}"'
        with ItemLog(folder, int(number)) as log:
            log.write("cut off", rank=int(number), at=found[int(number)])
    return found


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as stream:
        if stream.seek(0, 2) == 0:
            return True
        stream.seek(-1, 2)
        return stream.read() == b"\n"


def _last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line that is a JSON object; a torn one ended with its rank."""
    with path.open("rb") as stream:
        stream.seek(0, 2)
        stream.seek(max(0, stream.tell() - _TAIL_BYTES))
        lines = stream.read().splitlines()
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            return record
    return None
