"""Who makes the items of one run: processes of this machine, or the ranks of an MPI job."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from data_gen.sharing.drive import Hub, Outcome
from data_gen.sharing.local import LocalMakers
from data_gen.sharing.maker import Maker
from data_gen.sharing.messages import Broken, Ended, Stop
from data_gen.sharing.ranks import ORDER_TIMEOUT_S, RankHub, RankLine, Start, Team
from data_gen.sharing.vault import Berth
from stemdl.config import Config

EXIT_INCOMPLETE = 3
_END_TIMEOUT_S = 30.0

StopAsked = Callable[[], int]
"""Number of the signal that asks for the end, 0 for none."""


class Crew(Protocol):
    """Makers that can be put to work."""

    @property
    def size(self) -> int:
        """How many there can be."""

    def work(self, config: Config, config_hash: str, tasks: int, drive: Callable[[Hub, StopAsked], Outcome]) -> Outcome:
        """Run `drive` over a hub to makers, and end them afterwards, however it ends."""


@dataclass(frozen=True)
class LocalCrew:
    """Processes that this one starts."""

    size: int

    def work(self, config: Config, config_hash: str, tasks: int, drive: Callable[[Hub, StopAsked], Outcome]) -> Outcome:
        """See `Crew`: no more processes than there are tasks."""
        with _usr2_noted() as asked:
            hub = LocalMakers(config, min(self.size, tasks), config_hash)
            try:
                return drive(hub, asked)
            finally:
                hub.close()


class RankCrew:
    """The ranks of an MPI job, this one (rank 0) among them."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self.size = team.size

    def work(self, config: Config, config_hash: str, tasks: int, drive: Callable[[Hub, StopAsked], Outcome]) -> Outcome:
        """See `Crew`: the drive has a thread of its own, and this thread makes items."""
        hub = RankHub(self._team, config, config_hash)
        ends: list[Outcome | BaseException] = []
        maker_ended = threading.Event()

        def coordinate() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.valid_signals()))  # they are the main thread's
            try:
                ends.append(drive(hub, lambda: 0))
            except BaseException as error:  # noqa: BLE001  (raised again in the main thread)
                ends.append(error)
            finally:
                hub.own_line.take(Stop(0.0))  # a maker here that was taken as lost and has come back ends as well
                if not maker_ended.wait(_END_TIMEOUT_S):
                    self._team.abandon("rank 0 hangs in an item; all others have ended", EXIT_INCOMPLETE)

        thread = threading.Thread(target=coordinate, daemon=True)
        thread.start()
        try:
            Maker(config, _berth(self._team), hub.own_line, config_hash).run()
            maker_ended.set()
        except BaseException:
            maker_ended.set()
            hub.own_line.tell(Ended(signal.SIGINT))
            thread.join(_END_TIMEOUT_S)
            raise
        thread.join()  # bounded: it takes makers that say nothing as lost
        end = ends[0]
        if isinstance(end, BaseException):
            raise end
        if end.signal == signal.SIGINT:
            raise KeyboardInterrupt
        return end


def serve(config: Config, team: Team) -> int:
    """What every rank but the first does: wait for the order to begin, make items, and end when told; the exit code."""
    line = RankLine(team, config.simulation.rank_timeout_s)
    try:
        while isinstance(order := line.orders.get(), Start):
            Maker(config, _berth(team), line, order.config_hash).run()
        return order.code
    finally:
        line.close()


def _berth(team: Team) -> Berth:
    return Berth(team.rank, team.size, team.local_rank, team.local_size)


def refuse(team: Team, text: str) -> int:
    """What a rank does that cannot even read its configuration: rank 0 hears of it and ends them all; the exit code."""
    line = RankLine(team, ORDER_TIMEOUT_S)
    line.tell(Broken(f"rank {team.rank}: {text}", is_ours=False))
    try:
        while isinstance(order := line.orders.get(), Start):
            continue
        return order.code
    finally:
        line.close()


@contextmanager
def _usr2_noted() -> Iterator[StopAsked]:
    """Inside, SIGUSR2 does not end the process but is noted: schedulers send it some time before the end."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    before = signal.signal(signal.SIGUSR2, lambda number, _: seen.append(number))
    try:
        yield lambda: seen[0] if seen else 0
    finally:
        signal.signal(signal.SIGUSR2, before)
