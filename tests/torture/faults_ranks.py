"""Ranks of an mpirun that are killed, stopped or signalled, with and without the launcher's own clean-up."""

from __future__ import annotations

import re
import signal

from tests.torture.checks import check_kept, check_said, check_sound, require, sealed
from tests.torture.faults_processes import SLOW_S, again_and_again, wait_for_work
from tests.torture.processes import Command, children_of, run_ranks, send_signal, wait_for_the_end
from tests.torture.scene import Scene

_ANY_KILL = {9, 137, 255}
"""What launchers make of a rank that was killed by signal 9."""


def _at_work(scene: Scene, command: Command, ranks: int) -> dict[int, int]:
    """Processes of all ranks, once they are at work; empty where the run ended before."""
    if command.wait_until(lambda: len(command.ranks()) == ranks):
        found = command.ranks()
        if len(found) == ranks and wait_for_work(scene, command, least=1):
            return found
    check_said(command.end(), {0})
    return {}


def _nothing_left(scene: Scene, command: Command) -> None:
    left = wait_for_the_end(scene.folder)
    require(not left, f"processes are left: {left}\n{command.text}")


def _size(scene: Scene) -> int:
    """Ranks of a job of which one is lost: three where time is no matter."""
    return 2 if scene.warm else 3


def killed_ranks(scene: Scene) -> None:
    """kill -9 of one rank: the launcher ends the others; the next run says who was cut off at what."""

    def kill() -> bool:
        command = run_ranks(scene, 2, item_s=SLOW_S)
        ranks = _at_work(scene, command, 2)
        if not ranks:
            return False
        rank = int(scene.rng.integers(2))
        send_signal(ranks[rank], signal.SIGKILL)
        scene.inject(f"kill -9 of rank {rank} after {command.made()} samples")
        check_said(command.end(), _ANY_KILL, "(?i)signal.? 9|killed|exit code: 9")
        _nothing_left(scene, command)
        return True

    again_and_again(scene, kill)


def killed_ranks_kept(scene: Scene) -> None:
    """kill -9 of one rank where the launcher keeps the others: they do its samples, or end where it was rank 0.

    MPICH's Hydra 5.0 does not always keep them: its proxy ends them all where it sees a rank's socket closed before it
    hears of its end. Then the next run says who was cut off.
    """

    def kill() -> bool:
        scene.settings[:] = ["simulation.rank_timeout_s=5.0"]
        size = _size(scene)
        command = run_ranks(scene, size, keep=True, item_s=SLOW_S)
        ranks = _at_work(scene, command, size)
        if not ranks:
            return False
        rank = 0 if scene.rng.random() < 0.25 else 1 + int(scene.rng.integers(size - 1))
        send_signal(ranks[rank], signal.SIGKILL)
        scene.inject(f"kill -9 of rank {rank} after {command.made()} samples, the others kept")
        said = command.end()
        _nothing_left(scene, command)
        if re.search(r"^simulate +\d+ \+ \d+ fields", said.text, re.MULTILINE):
            check_said(said, {0, 3, *_ANY_KILL}, f"rank {rank} gave no sign of life for")
        elif "rank 0 has said nothing for" not in said.text:
            check_said(said, _ANY_KILL, "(?i)signal.? 9|killed|exit code: 9")
            check_sound(*scene.part_folders)
            before = sealed(*scene.part_folders)
            check_said(scene.simulate(), {0}, f"rank {rank} of an earlier run ended without a word")
            check_kept(before, *scene.part_folders)
        return True

    again_and_again(scene, kill)


def killed_trees(scene: Scene) -> None:
    """kill -9 of mpirun and all that it has started, as when a node dies."""

    def kill() -> bool:
        command = run_ranks(scene, 2, item_s=SLOW_S)
        ranks = _at_work(scene, command, 2)
        if not ranks:
            return False
        everybody = [command.process.pid, *children_of(command.process.pid)]
        require(set(ranks.values()) <= set(everybody), "the ranks are no children of mpirun")
        for process in everybody:
            send_signal(process, signal.SIGKILL)
        command.process.wait()
        scene.inject(f"kill -9 of mpirun and its {len(everybody) - 1} processes after {command.made()} samples")
        _nothing_left(scene, command)
        return True

    again_and_again(scene, kill)


def stopped_rank(scene: Scene) -> None:
    """A rank that hangs: it is taken as lost, its samples are done by others, and all end with rank 0."""

    def stop() -> bool:
        scene.settings[:] = ["simulation.rank_timeout_s=5.0"]
        size = _size(scene)
        command = run_ranks(scene, size, item_s=3 * SLOW_S)
        ranks = _at_work(scene, command, size)
        if not ranks:
            return False
        rank = 1 + int(scene.rng.integers(size - 1))
        send_signal(ranks[rank], signal.SIGSTOP)
        scene.inject(f"SIGSTOP of rank {rank} after {command.made()} samples")
        check_said(command.end(), {0, 3}, f"rank {rank} gave no sign of life for")
        _nothing_left(scene, command)
        return True

    again_and_again(scene, stop)


_SIGNALS = {
    "SIGUSR2 to all ranks": (None, signal.SIGUSR2, {85}, "out of time: run the same command again"),
    "SIGTERM to rank 1": (1, signal.SIGTERM, {0}, ""),
    "SIGUSR2 to rank 1": (1, signal.SIGUSR2, {85}, "out of time: run the same command again"),
    "SIGTERM to rank 0": (0, signal.SIGTERM, {85, 143}, "run the same command again"),
}


def signalled_ranks(scene: Scene) -> None:
    """What schedulers send to the ranks of a job: what is made is sealed, and the same command goes on."""

    def send() -> bool:
        name = list(_SIGNALS)[(len(scene.injected) + int(scene.count == 1) * int(scene.rng.integers(4))) % 4]
        rank, what, codes, text = _SIGNALS[name]
        command = run_ranks(scene, 2, item_s=3 * SLOW_S)
        ranks = _at_work(scene, command, 2)
        if not ranks:
            return False
        for target in [rank] if rank is not None else ranks:
            send_signal(ranks[target], what)
        scene.inject(f"{name} after {command.made()} samples")
        check_said(command.end(), codes, text)
        return True

    again_and_again(scene, send)
