"""One process that makes items: it takes what the coordinator hands out, and tells of everything it does."""

from __future__ import annotations

import os
import signal
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

import torch

from data_gen.engines import Engine, engine_by_name
from data_gen.materials import BadCrystal
from data_gen.sample import make_sample
from data_gen.sharing.clock import ItemClock, ItemDropped, ItemTimeout
from data_gen.sharing.item_log import ItemLog
from data_gen.sharing.messages import (
    AllSealed,
    Assign,
    Begun,
    Broken,
    Ended,
    Failure,
    FailureKind,
    Found,
    FromMaker,
    Hello,
    Made,
    PutBack,
    Said,
    Seal,
    Sealed,
    Stop,
    Task,
    ToMaker,
    Want,
)
from data_gen.sharing.vault import Berth, Vault
from stemdl.config import Config, fingerprint
from stemdl.errors import UserError
from stemdl.shards import Sample, ShardError

SIGNAL_GRACE_S = {signal.SIGINT: 0.0, signal.SIGTERM: 2.0, signal.SIGUSR2: 20.0}
"""How long the item under way may still take when a scheduler says that the end is near, or a user does not wait."""

_QUICK_S = 1.0  # an item below this is no time to wait for the next one to be handed out


class Line(Protocol):
    """The way to the coordinator."""

    inbox: SimpleQueue[ToMaker]

    def tell(self, message: FromMaker) -> None:
        """Send a message; from the main thread alone."""

    def on_stop(self, call: Callable[[float], None]) -> None:
        """Call with the grace in s as soon as a Stop arrives, from any thread."""


def log_folder(config: Config) -> Path:
    """Where every maker keeps a log."""
    return config.run.folder / "log"


@dataclass
class _Work:
    """What is under way."""

    tasks: deque[Task] = field(default_factory=deque)
    asked: bool = False
    signal: int = 0


class Maker:
    """Makes items until it is told to stop. Runs in the main thread of its process, on one thread."""

    def __init__(self, config: Config, berth: Berth, line: Line, config_hash: str) -> None:
        self._config = config
        self._berth = berth
        self._number = berth.number
        self._line = line
        self._hash = config_hash
        self._work = _Work()
        self._vault = Vault(config, berth, config_hash, lambda keys: line.tell(Sealed(keys)))

    def run(self) -> None:
        """Work until the coordinator, or a signal, says stop. What cannot be handled is told as Broken."""
        torch.set_num_threads(1)  # samples are independent: processes scale, threads inside a small FFT do not
        try:
            with ExitStack() as stack:
                log = stack.enter_context(ItemLog(log_folder(self._config), self._number))
                clock = ItemClock()
                stack.callback(clock.close)
                try:
                    self._prepare(stack, log, clock)
                    with self._vault:
                        self._work_on(log, clock)
                except Exception as error:
                    with suppress(OSError):  # of a full disk, which the error speaks of already
                        log.write("end", error=str(error))  # not without a word, as one that is killed
                    raise
                log.write("end", signal=self._work.signal)
            self._line.tell(Ended(self._work.signal))
        except UserError as error:
            self._line.tell(Broken(f"rank {self._number}: {error}", is_ours=False))
        except OSError as error:
            self._line.tell(Broken(f"rank {self._number}: {error}", is_ours=False))
        except Exception as error:  # noqa: BLE001  (whatever it is, the coordinator must hear of it)
            text = f"rank {self._number}: {type(error).__name__}: {error}\n{traceback.format_exc()}"
            self._line.tell(Broken(text, is_ours=True))

    def _prepare(self, stack: ExitStack, log: ItemLog, clock: ItemClock) -> None:
        """Listen to stops, look for the node's storage, and say hello."""
        self._line.on_stop(clock.stop_in)
        for number in SIGNAL_GRACE_S:
            before = signal.signal(number, lambda n, _: self._signalled(n, clock))
            stack.callback(signal.signal, number, before)
        host = socket.gethostname()
        log.write("start", rank=self._number, host=host, process=os.getpid(), config_hash=self._hash)
        storage, found = self._vault.prepare()
        if storage:
            log.write("storage", text=storage)
            if self._number == 0:
                self._line.tell(Said(storage))
        if found:
            self._line.tell(Found(found))
        self._line.tell(Hello(host, os.getpid(), fingerprint(self._config)))

    def _work_on(self, log: ItemLog, clock: ItemClock) -> None:
        engine = engine_by_name(self._config.simulation.engine)
        while not clock.stopping:
            message = self._next_message()
            if isinstance(message, Assign):
                self._work.tasks.extend(message.tasks)
                self._work.asked = False
            elif isinstance(message, Seal):
                self._vault.seal()
                self._line.tell(AllSealed())
            elif isinstance(message, Stop):
                break
            if self._work.tasks and not clock.stopping:
                self._do(self._work.tasks.popleft(), log, clock, engine)

    def _next_message(self) -> ToMaker | None:
        """What the coordinator says; waits for it where there is nothing else to do."""
        if self._work.tasks:
            return None if self._line.inbox.empty() else self._line.inbox.get()
        if not self._work.asked:
            self._ask()
        return self._line.inbox.get()

    def _ask(self) -> None:
        self._work.asked = True
        self._line.tell(Want())

    def _signalled(self, number: int, clock: ItemClock) -> None:
        self._work.signal = number
        clock.stop_in(SIGNAL_GRACE_S[signal.Signals(number)])
        self._line.inbox.put(Stop(0.0))  # wakes the main thread where it waits; SimpleQueue may be used in a handler

    def _do(self, task: Task, log: ItemLog, clock: ItemClock, engine: Engine) -> None:
        crystal = task.part.crystal_of(task.item).name
        log.write("item", part=task.part.name, item=task.item, crystal=crystal, estimated_s=round(task.estimated_s, 4))
        self._line.tell(Begun(task.key))
        if not self._work.tasks and task.estimated_s < _QUICK_S:
            self._ask()
        started = time.monotonic()
        made = self._try(task, log, clock, engine, crystal)
        if isinstance(made, Sample):
            try:
                self._vault.add(task.part.name, made)
            except ShardError as error:
                if not self._vault.usable(task.part.name):
                    raise
                made = self._failure(task, log, crystal, "sample", str(error))
        seconds = time.monotonic() - started
        if isinstance(made, Sample):
            log.write("made", part=task.part.name, item=task.item, seconds=round(seconds, 4))
            self._line.tell(Made(task.key, seconds))
        else:
            self._line.tell(made)

    def _try(
        self, task: Task, log: ItemLog, clock: ItemClock, engine: Engine, crystal: str
    ) -> Sample | Failure | PutBack:
        limit_s = self._config.simulation.item_timeout_s
        try:
            with clock.item(limit_s):
                return make_sample(self._config, task.part, task.item, engine)
        except ItemDropped:
            return PutBack(task.key)
        except ItemTimeout:
            reason = f"took longer than {limit_s:g} s (simulation.item_timeout_s)"
            return self._failure(task, log, crystal, "time", reason)
        except BadCrystal as error:
            return self._failure(task, log, error.name, "specimen", error.reason)
        except Exception as error:  # noqa: BLE001  (one item of many thousands must not end them all; it is named)
            if _is_lack_of_memory(error):
                reason = f"out of memory ({error}); lower simulation.probe_chunk, or use fewer processes"
                return self._failure(task, log, crystal, "memory", reason)
            log.write("traceback", part=task.part.name, item=task.item, text=traceback.format_exc())
            return self._failure(task, log, crystal, "fault", f"{type(error).__name__}: {error}")

    def _failure(self, task: Task, log: ItemLog, crystal: str, kind: FailureKind, reason: str) -> Failure:
        log.write("failed", part=task.part.name, item=task.item, crystal=crystal, kind=kind, reason=reason)
        return Failure(task.part.name, task.item, crystal, reason, kind)


def _is_lack_of_memory(error: Exception) -> bool:
    """torch has a class for it on accelerators alone."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
