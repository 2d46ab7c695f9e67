"""Ranks of an mpirun that are killed, stopped or signalled, with and without the launcher's own clean-up."""

from __future__ import annotations

import signal

from tests.torture.checks import check_kept, check_said, check_sound, require, sealed
from tests.torture.faults_processes import SLOW, finish, wait_for_work
from tests.torture.processes import Command, children_of, run_ranks, send_signal, wait_for_the_end
from tests.torture.scene import CampaignFailure, Said, Scene

_ANY_KILL = {9, 137, 255}
"""What launchers make of a rank that was killed by signal 9."""


def _until_both_work(scene: Scene, command: Command, ranks: int) -> dict[int, int]:
    """Processes of all ranks, once they are at work; empty where the run ended before."""
    if not command.wait_until(lambda: len(command.ranks()) == ranks):
        return {}
    return command.ranks() if wait_for_work(scene, command, least=1) else {}


def _check_no_traceback(said: Said) -> None:
    check_said(said, {said.code})


def killed_ranks(scene: Scene) -> None:
    """kill -9 of one rank: the launcher ends the others; the next run says who was cut off at what."""
    scene.without_results()
    while len(scene.injected) < scene.count:
        before = sealed(*scene.part_folders)
        command = run_ranks(scene, 2, **SLOW)
        ranks = _until_both_work(scene, command, 2)
        if not ranks:
            check_said(command.end(), {0})
            break
        rank = int(scene.rng.integers(2))
        send_signal(ranks[rank], signal.SIGKILL)
        scene.inject(f"kill -9 of rank {rank} after {command.made()} samples")
        said = command.end()
        check_said(said, _ANY_KILL, "(?i)signal.? 9|killed|exit code: 9")
        require(not wait_for_the_end(scene.folder), f"ranks are left:\n{said.text}")
        check_sound(*scene.part_folders)
        check_kept(before, *scene.part_folders)
    finish(scene)
    scene.survive()


def killed_ranks_kept(scene: Scene) -> None:
    """kill -9 of one rank where the launcher keeps the others: they do its samples, or end where it was rank 0."""
    scene.without_results()
    scene.settings.append("simulation.rank_timeout_s=5.0")
    while len(scene.injected) < scene.count:
        before = sealed(*scene.part_folders)
        command = run_ranks(scene, 3, keep=True, **SLOW)
        ranks = _until_both_work(scene, command, 3)
        if not ranks:
            check_said(command.end(), {0})
            break
        rank = 0 if scene.rng.random() < 0.25 else 1 + int(scene.rng.integers(2))
        send_signal(ranks[rank], signal.SIGKILL)
        scene.inject(f"kill -9 of rank {rank} after {command.made()} samples, the others kept")
        said = command.end()
        if rank == 0:
            check_said(said, {said.code}, "rank 0 has said nothing for|signal 9|Killed")
        else:
            check_said(said, {0, 3, *_ANY_KILL}, rf"rank {rank} gave no sign of life|signal 9|Killed")
        require(not wait_for_the_end(scene.folder), f"ranks are left:\n{said.text}")
        check_sound(*scene.part_folders)
        check_kept(before, *scene.part_folders)
    finish(scene)
    scene.survive()


def killed_trees(scene: Scene) -> None:
    """kill -9 of mpirun and all that it has started, as when a node dies."""
    scene.without_results()
    while len(scene.injected) < scene.count:
        before = sealed(*scene.part_folders)
        command = run_ranks(scene, 2, **SLOW)
        ranks = _until_both_work(scene, command, 2)
        if not ranks:
            check_said(command.end(), {0})
            break
        everybody = [command.popen.pid, *children_of(command.popen.pid)]
        require(set(ranks.values()) <= set(everybody), "the ranks are no children of mpirun")
        for process in everybody:
            send_signal(process, signal.SIGKILL)
        command.popen.wait()
        scene.inject(f"kill -9 of mpirun and its {len(everybody) - 1} processes after {command.made()} samples")
        require(not wait_for_the_end(scene.folder), f"processes are left:\n{command.text}")
        check_sound(*scene.part_folders)
        check_kept(before, *scene.part_folders)
    finish(scene)
    scene.survive()


def stopped_rank(scene: Scene) -> None:
    """A rank that hangs: it is taken as lost, its samples are done by others, and all end with rank 0."""
    for _ in range(scene.count):
        if not scene.file.is_file():
            scene.without_results()
        scene.settings[:] = ["simulation.rank_timeout_s=5.0"]
        command = run_ranks(scene, 3, TORTURE_ITEM_S="0.3")
        ranks = _until_both_work(scene, command, 3)
        if not ranks:
            check_said(command.end(), {0})
            break
        rank = 1 + int(scene.rng.integers(2))
        send_signal(ranks[rank], signal.SIGSTOP)
        scene.inject(f"SIGSTOP of rank {rank} after {command.made()} samples")
        said = command.end()
        check_said(said, {0, 3}, f"rank {rank} gave no sign of life for")
        left = wait_for_the_end(scene.folder, 5.0)
        require(not left, f"a stopped rank is left: {left}\n{said.text}")
        check_sound(*scene.part_folders)
    finish(scene)
    scene.survive()


_SIGNALS = {
    "SIGUSR2 to all ranks": (None, signal.SIGUSR2, {85}, "out of time: run the same command again"),
    "SIGTERM to rank 1": (1, signal.SIGTERM, {0}, ""),
    "SIGUSR2 to rank 1": (1, signal.SIGUSR2, {85}, "out of time: run the same command again"),
    "SIGTERM to rank 0": (0, signal.SIGTERM, {85, 143}, "run the same command again"),
}


def signalled_ranks(scene: Scene) -> None:
    """What schedulers send to the ranks of a job: what is made is sealed, and the same command goes on."""
    scene.without_results()
    names = list(_SIGNALS)
    for number in range(scene.count):
        rank, what, codes, text = _SIGNALS[names[number % len(names)]]
        before = sealed(*scene.part_folders)
        command = run_ranks(scene, 2, TORTURE_ITEM_S="0.3")
        ranks = _until_both_work(scene, command, 2)
        if not ranks:
            check_said(command.end(), {0})
            break
        for target in [rank] if rank is not None else ranks:
            send_signal(ranks[target], what)
        scene.inject(f"{names[number % len(names)]} after {command.made()} samples")
        said = command.end()
        check_said(said, codes, text)
        if said.code not in codes:
            raise CampaignFailure(said.text)
        check_sound(*scene.part_folders)
        check_kept(before, *scene.part_folders)
    finish(scene)
    scene.survive()
