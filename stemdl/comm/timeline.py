"""What a rank did when, in the format of Chrome's trace viewer and of Perfetto."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stemdl.atomic_files import replace_atomically

LANES = ("negotiate", "queue", "fuse", "allreduce", "wait")
"""The rows of a rank: agreeing; groups that are ready here and not yet everywhere; gradients copied into buffers;
the sums; the training step waiting."""


class Timeline:
    """Events of one rank. Times are of this host's clock since 1970, so that ranks of one node line up."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._lock = threading.Lock()
        self._events: list[tuple[str, str, float, float]] = []
        self._offset_s = time.time() - time.perf_counter()

    def add(self, lane: str, name: str, start_s: float, stop_s: float) -> None:
        """An event between two readings of time.perf_counter."""
        with self._lock:
            self._events.append((lane, name, start_s, stop_s))

    @contextmanager
    def during(self, lane: str, name: str) -> Iterator[None]:
        """An event that lasts as long as the block."""
        start_s = time.perf_counter()
        yield
        self.add(lane, name, start_s, time.perf_counter())

    def write(self, path: Path) -> None:
        """Write the trace (JSON). Raises OSError."""
        with self._lock:
            events = list(self._events)
        records: list[dict[str, object]] = [
            {"ph": "M", "pid": self._rank, "tid": number, "name": "thread_name", "args": {"name": lane}}
            for number, lane in enumerate(LANES)
        ]
        records.append({"ph": "M", "pid": self._rank, "name": "process_name", "args": {"name": f"rank {self._rank}"}})
        for lane, name, start_s, stop_s in events:
            records.append(
                {
                    "ph": "X",
                    "pid": self._rank,
                    "tid": LANES.index(lane),
                    "name": name,
                    "ts": (start_s + self._offset_s) * 1e6,
                    "dur": (stop_s - start_s) * 1e6,
                }
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_atomically(path, json.dumps({"traceEvents": records}).encode())
