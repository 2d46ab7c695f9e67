"""Makers as processes of this machine, each at the end of a pipe.

A maker that dies, however, closes its pipe: the parent hears of it at once, and starts another in its place. A parent
that dies takes its makers along, so that the next run finds no writer of the same rank alive.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any

from data_gen.sharing.left_behind import sealed_by
from data_gen.sharing.maker import Maker
from data_gen.sharing.messages import Alive, FromMaker, ItemKey, Lost, Stop, ToMaker
from data_gen.sharing.vault import Berth
from stemdl.config import Config
from stemdl.launch import ONE_THREAD

END_TIMEOUT_S = 10.0
"""How long a maker that was told to end may take before it is killed: it may be waiting for a disk."""

_ALIVE_EVERY_S = 2.0
_SEND_TIMEOUT_S = 30


@dataclass
class _Process:
    process: BaseProcess
    connection: Connection[Any, Any]
    has_spoken: bool = False


class LocalMakers:
    """The processes and their pipes. `close` ends them: at once where they have not ended by themselves.

    lost: how a maker died is told as a `Lost` message of its own.
    """

    def __init__(self, config: Config, count: int, config_hash: str) -> None:
        self._config = config
        self._hash = config_hash
        self._processes: dict[int, _Process] = {}
        resource_tracker.ensure_running()  # its own start lets Ctrl-C through again: before ours is held back
        self.numbers = tuple(range(count))
        for number in self.numbers:
            self._start(number)

    def restart(self, number: int) -> bool:
        """Start another process in the place of a lost one.

        False where that one died before it said anything, and where it is stuck in the system and cannot be ended.
        """
        one = self._processes[number]
        if not one.has_spoken or one.process.is_alive():
            return False
        self._start(number, again=True)
        return True

    def sealed_by(self, number: int) -> tuple[ItemKey, ...]:
        """Items that a lost maker has sealed, whether it said so or not. Raises ShardError."""
        is_dead = not self._processes[number].process.is_alive()
        return sealed_by(self._config, self._hash, number, is_dead=is_dead)

    def receive(self, timeout_s: float) -> list[tuple[int, FromMaker]]:
        """What the makers have said; waits for something, but no longer than the time-out."""
        number_of = {one.connection: number for number, one in self._processes.items() if not one.connection.closed}
        heard: list[tuple[int, FromMaker]] = []
        for connection in wait(list(number_of), timeout_s):
            assert isinstance(connection, Connection)
            number = number_of[connection]
            try:
                heard.append((number, connection.recv()))
                self._processes[number].has_spoken = True
            except (EOFError, OSError):
                connection.close()
                heard.append((number, Lost(self._how_it_ended(number))))
        return heard

    def send(self, number: int, message: ToMaker) -> None:
        """Tell a maker something; one that is dead cannot hear it, and `receive` says so."""
        connection = self._processes[number].connection
        if connection.closed:
            return
        try:
            connection.send(message)
        except BlockingIOError:  # it takes nothing, and has now half a message
            self._processes[number].process.kill()
        except OSError:
            return  # its end of the pipe is closed: told as Lost by `receive`

    def give_up(self, number: int) -> None:
        """End a maker that hangs."""
        one = self._processes[number]
        one.process.kill()
        one.process.join(END_TIMEOUT_S)
        one.connection.close()

    def close(self) -> None:
        """End all processes; those that have not ended by themselves lose what they have not sealed."""
        for one in self._processes.values():
            one.connection.close()
        for one in self._processes.values():
            one.process.join(END_TIMEOUT_S if one.process.is_alive() else 0.0)
            if one.process.is_alive():
                one.process.kill()
                one.process.join()

    def _start(self, number: int, *, again: bool = False) -> None:
        context = multiprocessing.get_context("spawn")  # a forked child of a process with threads may deadlock
        with _signals_held_back(), _environment(ONE_THREAD):
            ours, theirs = context.Pipe()
            _limit_sending(ours)
            count = len(self.numbers)
            # The first of a node clears up for all of them, which only works before the others are at work.
            local_rank = max(number, 1) if again else number
            arguments = (self._config, Berth(number, count, local_rank, count), theirs, self._hash)
            process = context.Process(target=_make, args=arguments, daemon=True)
            process.start()
            theirs.close()  # or the pipe would not end with the maker
            self._processes[number] = _Process(process, ours)

    def _how_it_ended(self, number: int) -> str:
        process = self._processes[number].process
        process.join(END_TIMEOUT_S)
        code = process.exitcode
        if code is None:
            return "closed its pipe"
        how = f"was killed by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"ended with code {code}"
        return how + (" (is the memory full? then lower simulation.workers or probe_chunk)" if code == -9 else "")


def _limit_sending(connection: Connection[Any, Any]) -> None:
    """Let a write to a pipe that is full, since nobody reads, fail after a while (BlockingIOError)."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _SEND_TIMEOUT_S, 0))


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Ctrl-C reaches every process of the terminal. Makers inherit that it is held back: the parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables for the processes started inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class PipeLine:
    """A maker's end of the pipe: a thread of its own listens, so that a stop is heard while an item is under way."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.inbox: SimpleQueue[ToMaker] = SimpleQueue()
        self._connection = connection
        self._sending = threading.Lock()
        self._stop: Callable[[float], None] | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def tell(self, message: FromMaker) -> None:
        """Send a message; the process ends where nobody listens any more."""
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            os._exit(1)

    def on_stop(self, call: Callable[[float], None]) -> None:
        """Call with the grace in s as soon as a Stop arrives."""
        self._stop = call

    def _listen(self) -> None:
        """Pass on what comes; without a parent, die as by kill -9, from which shards are safe."""
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.valid_signals()))  # they are the main thread's
        while True:
            try:
                if not self._connection.poll(_ALIVE_EVERY_S):
                    self.tell(Alive())
                    continue
                message = self._connection.recv()
            except (EOFError, OSError):
                os._exit(1)
            if isinstance(message, Stop) and self._stop is not None:
                self._stop(message.grace_s)
            self.inbox.put(message)


def _make(config: Config, berth: Berth, connection: Connection[Any, Any], config_hash: str) -> None:
    """The main function of a maker's process."""
    Maker(config, berth, PipeLine(connection), config_hash).run()
    connection.close()
