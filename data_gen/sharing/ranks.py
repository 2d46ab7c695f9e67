"""Makers as the ranks of an MPI job; rank 0 coordinates in a thread of its own while it makes items itself.

All MPI calls of a process come from one thread at a time: first the main one, then the one that talks. Nothing waits
inside MPI: messages are probed for, and sent without blocking, so a rank that hangs stops nobody else.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from data_gen.sharing.left_behind import sealed_by
from data_gen.sharing.messages import Alive, Broken, Ended, FromMaker, ItemKey, Stop, ToMaker
from stemdl.config import Config
from stemdl.errors import UserError
from stemdl.launch import Rank

_TAG = 7
_POLL_S = 0.002
_ALIVE_EVERY_S = 2.0
_LONGEST_TURN_S = 5.0
_RANKS_PER_ALIVE_S = 200  # signs of life that rank 0 reads in a second: beyond that they come less often
ORDER_TIMEOUT_S = 3600.0
"""How long ranks wait for rank 0 to read the crystals and look into the folders."""


class RanksError(UserError):
    """The launcher and MPI do not agree, or rank 0 is gone."""


@dataclass(frozen=True)
class Start:
    """Rank 0 to the others: begin. `config_hash` marks the shards."""

    config_hash: str


@dataclass(frozen=True)
class Quit:
    """Rank 0 to the others: end with this exit code."""

    code: int


class Team:
    """This process among the ranks of an MPI job.

    rank, size: in the job; local_rank, local_size: on this node.
    """

    def __init__(self, announced: Rank) -> None:
        """Start MPI. Raises RanksError where it is missing, or counts other ranks than the launcher announced."""
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise RanksError(
                f"{announced.launcher} started {announced.size} ranks, but mpi4py cannot be used ({error}); "
                "install it: pip install 'stemdl[mpi]', or build mpi4py with the MPI of this site"
            ) from error
        self._mpi: Any = MPI
        self._comm: Any = MPI.COMM_WORLD.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = int(self._comm.Get_rank()), int(self._comm.Get_size())
        if self.size != announced.size:
            library = MPI.Get_library_version().splitlines()[0]
            raise RanksError(
                f"{announced.launcher} announces rank {announced.rank} of {announced.size}, MPI ({library}) counts "
                f"{self.size}: this is another MPI than the launcher's (in Slurm see srun --mpi=list)"
            )
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise RanksError("this MPI allows calls from one thread alone; set MPI4PY_RC_THREAD_LEVEL=serialized")
        node = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = int(node.Get_rank()), int(node.Get_size())
        self._sendings: list[Any] = []
        self.lost: set[int] = set()

    def send(self, rank: int, message: object) -> None:
        """Send without waiting."""
        self._sendings = [one for one in self._sendings if not one.Test()]
        self._sendings.append(self._comm.isend(message, dest=rank, tag=_TAG))

    def receive(self) -> tuple[int, Any] | None:
        """A message that is there, and its sender; None where there is none."""
        status = self._mpi.Status()
        if not self._comm.iprobe(source=self._mpi.ANY_SOURCE, tag=_TAG, status=status):
            return None
        source = status.Get_source()
        return source, self._comm.recv(source=source, tag=_TAG)

    def allgather(self, value: object, *, timeout_s: float, what: str) -> list[Any]:
        """What every rank gives, by rank, on all of them: a meeting of all ranks. From the main thread.

        Raises RanksError where some have not come within the time, naming them and `what` was waited for.
        """
        if self.rank > 0:
            self.send(0, value)
            return list(self._await(0, timeout_s, what))
        values: dict[int, Any] = {0: value}
        deadline = time.monotonic() + timeout_s
        while len(values) < self.size:
            found = self.receive()
            if found is not None:
                values[found[0]] = found[1]
            elif time.monotonic() > deadline:
                missing = sorted(set(range(self.size)) - values.keys())
                self.lost.update(missing)
                raise RanksError(f"{what}: nothing heard of ranks {missing[:20]} for {timeout_s:g} s")
            else:
                time.sleep(_POLL_S)
        everything = [values[rank] for rank in range(self.size)]
        for rank in range(1, self.size):
            self.send(rank, everything)
        self.flush()
        return everything

    def _await(self, source: int, timeout_s: float, what: str) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = self.receive()
            if found is not None:
                return found[1]
            time.sleep(_POLL_S)
        raise RanksError(f"{what}: rank {self.rank} has heard nothing of rank {source} for {timeout_s:g} s")

    def flush(self, timeout_s: float = 5.0) -> None:
        """Wait until what was sent has left, or the time is over: a rank that hangs takes nothing."""
        deadline = time.monotonic() + timeout_s
        while self._sendings and time.monotonic() < deadline:
            self._sendings = [one for one in self._sendings if not one.Test()]
            time.sleep(_POLL_S)

    def dismiss(self, code: int) -> None:
        """Rank 0, at its end: the others end with `code` as well; with ranks lost, all are ended by MPI."""
        for rank in range(1, self.size):
            if rank not in self.lost:
                self.send(rank, Quit(code))
        self.flush()
        if self.lost:
            time.sleep(1.0)  # the others leave by themselves first
            self._mpi.COMM_WORLD.Abort(code)

    def abandon(self, reason: str, code: int) -> None:
        """Say why, and have MPI end all ranks, this one included; what is sealed is safe."""
        os.write(2, f"stemdl: {reason}\n".encode())
        self._mpi.COMM_WORLD.Abort(code)

    def alive_every_s(self) -> float:
        """Time between two signs of life of a rank."""
        return max(_ALIVE_EVERY_S, self.size / _RANKS_PER_ALIVE_S)


class RankLine:
    """The way of a rank to the coordinator on rank 0; a thread of its own does the MPI calls."""

    def __init__(self, team: Team, silence_s: float) -> None:
        self.inbox: SimpleQueue[ToMaker] = SimpleQueue()
        self.orders: SimpleQueue[Start | Quit] = SimpleQueue()
        self._outbox: SimpleQueue[FromMaker] = SimpleQueue()
        self._team = team
        self._silence_s = silence_s
        self._stop: Callable[[float], None] | None = None
        self._closing = False
        self._started = False
        self._thread = threading.Thread(target=self._talk, daemon=True)
        self._thread.start()

    def tell(self, message: FromMaker) -> None:
        """Send a message."""
        self._outbox.put(message)
        if isinstance(message, (Ended, Broken)):
            self._started = False  # the next order may take its time

    def on_stop(self, call: Callable[[float], None]) -> None:
        """Call with the grace in s as soon as a Stop arrives."""
        self._stop = call

    def close(self) -> None:
        """Send what is left, and end the thread."""
        self._closing = True
        self._thread.join()
        self._team.flush()

    def _talk(self) -> None:
        """The thread: nothing that goes wrong in it may leave the main one waiting for ever."""
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.valid_signals()))  # they are the main thread's
        try:
            self._send_and_receive()
        except Exception:  # noqa: BLE001  (whatever MPI says)
            self._leave(traceback.format_exc())

    def _send_and_receive(self) -> None:
        heard = told = now = time.monotonic()
        while True:
            closing = self._closing  # before the outbox is looked at: what was told before is sent
            before, now = now, time.monotonic()
            heard += max(0.0, now - before - _LONGEST_TURN_S)  # the whole job was stopped, and goes on
            while not self._outbox.empty():
                self._team.send(0, self._outbox.get())
                told = now
            if closing:
                return
            while (found := self._team.receive()) is not None:
                heard = now
                self._take(found[1])
            if self._started and now - told > self._team.alive_every_s():
                self._outbox.put(Alive())
            if now - heard > (self._silence_s if self._started else ORDER_TIMEOUT_S):
                self._leave(f"rank 0 has said nothing for {now - heard:.0f} s")
            time.sleep(_POLL_S)

    def _take(self, message: Any) -> None:
        if isinstance(message, (Start, Quit)):
            self._started = isinstance(message, Start)
            self.orders.put(message)
        elif not isinstance(message, Alive):
            if isinstance(message, Stop) and self._stop is not None:
                self._stop(message.grace_s)
            self.inbox.put(message)

    def _leave(self, reason: str) -> None:
        """Nobody coordinates any more: die as by kill -9, from which shards are safe."""
        host = socket.gethostname()
        os.write(2, f"stemdl: rank {self._team.rank} on {host}: {reason}; this rank ends\n".encode())
        os._exit(1)


class RankHub:
    """Rank 0's side: the other ranks through MPI, and its own maker beside it in this process."""

    def __init__(self, team: Team, config: Config, config_hash: str) -> None:
        self._team = team
        self._config = config
        self._hash = config_hash
        self._own: SimpleQueue[FromMaker] = SimpleQueue()
        self._alive_at = 0.0
        self.own_line = OwnLine(self._own)
        self.numbers = tuple(range(team.size))
        for rank in self.numbers[1:]:
            team.send(rank, Start(config_hash))

    def receive(self, timeout_s: float) -> list[tuple[int, FromMaker]]:
        """What the makers have said; waits for something, but no longer than the time-out."""
        deadline = time.monotonic() + timeout_s
        heard: list[tuple[int, FromMaker]] = []
        while not heard:
            while True:
                try:
                    heard.append((0, self._own.get_nowait()))
                except Empty:
                    break
            while (found := self._team.receive()) is not None:
                heard.append(found)
            now = time.monotonic()
            if now - self._alive_at > self._team.alive_every_s():
                self._alive_at = now
                heard.append((0, Alive()))  # rank 0 lives as long as this thread
                for rank in self.numbers[1:]:
                    if rank not in self._team.lost:
                        self._team.send(rank, Alive())
            if now >= deadline:
                break
            if not heard:
                time.sleep(_POLL_S)
        return heard

    def send(self, number: int, message: ToMaker) -> None:
        """Tell a maker something."""
        if number == 0:
            self.own_line.take(message)
        elif number not in self._team.lost:
            self._team.send(number, message)

    def give_up(self, number: int) -> None:
        """Take a rank as lost: it is told nothing any more, and MPI ends it when rank 0 has done."""
        self._team.lost.add(number)

    def sealed_by(self, number: int) -> tuple[ItemKey, ...]:
        """Items that a lost rank has sealed, whether it said so or not. Raises ShardError."""
        return sealed_by(self._config, self._hash, number, is_dead=False)

    def restart(self, number: int) -> bool:
        """A rank cannot be started again."""
        return False

    def close(self) -> None:
        """Nothing is open here."""


class OwnLine:
    """The way of rank 0's own maker to the coordinator in the same process."""

    def __init__(self, to_coordinator: SimpleQueue[FromMaker]) -> None:
        self.inbox: SimpleQueue[ToMaker] = SimpleQueue()
        self._out = to_coordinator
        self._stop: Callable[[float], None] | None = None

    def tell(self, message: FromMaker) -> None:
        """Send a message."""
        self._out.put(message)

    def on_stop(self, call: Callable[[float], None]) -> None:
        """Call with the grace in s as soon as a Stop arrives."""
        self._stop = call

    def take(self, message: ToMaker) -> None:
        """What the coordinator says."""
        if isinstance(message, Stop) and self._stop is not None:
            self._stop(message.grace_s)
        self.inbox.put(message)
