"""Jobs of several ranks of this machine, started as torchrun or mpirun would, whose output a test can read."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.small_run import Process


def free_port() -> int:
    """A port that nobody listens at just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Ranks:
    """So many processes of one program, with the variables that torchrun sets. A context manager that leaves nobody."""

    def __init__(
        self,
        count: int,
        arguments: list[str | Path],
        *,
        extra: Mapping[int, list[str | Path]] | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        """extra: other arguments for some ranks."""
        port = free_port()
        self.processes = [
            Process(
                (extra or {}).get(rank, arguments),
                timeout_s=timeout_s,
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(count),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
            )
            for rank in range(count)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.popen.pid, signal.SIGKILL)
            process.popen.wait(10.0)
            process.close()

    @property
    def log(self) -> str:
        """What all ranks have said, each under its number."""
        return "\n".join(f"--- rank {rank}\n{process.log}" for rank, process in enumerate(self.processes))

    def end(self) -> list[int]:
        """Wait for all of them; their exit codes. Fails the test, with the log, when time is up."""
        return [process.end() for process in self.processes]

    def end_of_all_but(self, rank: int, within_s: float) -> list[int]:
        """Exit codes of the others, who have to end within the time."""
        deadline = time.monotonic() + within_s
        others = [process for number, process in enumerate(self.processes) if number != rank]
        while any(process.popen.poll() is None for process in others):
            assert time.monotonic() < deadline, f"ranks go on after {within_s} s:\n{self.log}"
            time.sleep(0.05)
        return [process.end() for process in others]
