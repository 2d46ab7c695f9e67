"""Jobs of `horovod_child` under mpirun that live at once and work in turn: those without a turn are stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from stemdl.errors import UserError
from stemdl.launch import ONE_THREAD

START_TIMEOUT_S = 300.0
TURN_TIMEOUT_S = 300.0
END_TIMEOUT_S = 60.0
_ROOT = Path(__file__).resolve().parents[2]


GROUPED = "grouped"
"""How the names begin of Horovod's modes with groups."""

Side = Literal["stemdl", "horovod"]


@dataclass(frozen=True)
class Order:
    """What a rank does. groups: numbers of groups for Horovod, 0 for plain, -1 for one for each parameter. port: where
    the parent listens; the job sets it."""

    side: Side
    config: str
    workload: str
    batch: int
    lr: float
    groups: tuple[int, ...] = ()
    port: int = 0


class Job:
    """One mpirun. `name` is for messages.

    Raises UserError where the job does not start, or ends before it is told to; the last lines of its log are in it.
    """

    def __init__(self, name: str, order: Order, ranks: int, environment: Mapping[str, str]) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  (closed in close)
        self._pids: list[int] = []
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(1.0)
            told = {**asdict(order), "port": server.getsockname()[1]}
            self._mpirun = subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("mpirun")),
                    *("-n", str(ranks), sys.executable, "-m", "tests.peers.horovod_child", json.dumps(told)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                cwd=_ROOT,
                env={**os.environ, **ONE_THREAD, **environment},
            )
            try:
                self._line = self._accept(server)
            except BaseException:
                self._mpirun.terminate()  # it ends its ranks
                raise
        self._line.settimeout(TURN_TIMEOUT_S)
        self._stream = self._line.makefile("rw")
        self.about: dict[str, Any] = self._read()
        self._pids = self.about["pids"]
        self._signal(signal.SIGSTOP)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(orderly=error is None)

    @property
    def modes(self) -> list[str]:
        """What it has."""
        return list(self.about["modes"])

    def turn(self, number: int, modes: Sequence[str]) -> dict[str, dict[str, float]]:
        """Let it make a step of each of these modes: seconds and loss by mode."""
        self._signal(signal.SIGCONT)
        self._say(json.dumps([number, list(modes)]))
        answer: dict[str, dict[str, float]] = self._read()
        self._signal(signal.SIGSTOP)
        return answer

    def close(self, *, orderly: bool) -> None:
        """End it; where it is not done in time, by force."""
        self._signal(signal.SIGCONT)
        try:
            if orderly:
                self._say("end")
                if self._mpirun.wait(END_TIMEOUT_S) != 0:
                    raise UserError(self._failure(f"ended with {self._mpirun.returncode}"))
        except subprocess.TimeoutExpired as error:
            raise UserError(self._failure(f"did not end within {END_TIMEOUT_S:g} s")) from error
        finally:
            self._signal(signal.SIGKILL)
            self._mpirun.terminate()
            self._mpirun.wait()
            self._log.close()
            self._line.close()

    def _accept(self, server: socket.socket) -> socket.socket:
        for _ in range(int(START_TIMEOUT_S)):
            try:
                return server.accept()[0]
            except TimeoutError:
                if self._mpirun.poll() is not None:
                    break
        raise UserError(self._failure("did not start"))

    def _say(self, word: str) -> None:
        self._stream.write(word + "\n")
        self._stream.flush()

    def _read(self) -> Any:
        try:
            said = self._stream.readline()
        except TimeoutError as error:
            raise UserError(self._failure(f"gave no answer for {TURN_TIMEOUT_S:g} s")) from error
        if not said:
            raise UserError(self._failure("is gone"))
        return json.loads(said)

    def _signal(self, number: signal.Signals) -> None:
        if self._mpirun.poll() is None:
            for pid in self._pids:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue  # mpirun will say that it has ended

    def _failure(self, what: str) -> str:
        self._log.seek(0)
        last = "\n".join(self._log.read().splitlines()[-15:])
        return f"{self.name} {what}:\n{last}"


def in_turn(names: Sequence[str], turn: int) -> list[str]:
    """Another one first in each turn, and every second turn in reverse."""
    first = turn // 2 % len(names)
    order = [*names[first:], *names[:first]]
    return order if turn % 2 == 0 else order[::-1]


def free_port() -> int:
    """On this machine, now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
