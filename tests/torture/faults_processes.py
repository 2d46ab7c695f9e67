"""Processes that are killed, stopped or signalled while `stemdl simulate` works with makers of this machine."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable

from tests.torture.checks import check_complete, check_kept, check_said, check_sound, require, sealed
from tests.torture.processes import Command, children_of, is_alive, run_simulate, send_signal, wait_for_the_end
from tests.torture.scene import Scene

SLOW_S = 0.12
"""Time of a sample, enough to hit one, or what comes between two."""

_TRIES = 3


def wait_for_work(scene: Scene, command: Command, *, least: int = 0) -> bool:
    """Until a drawn number of samples is made, and a moment more; False where the run has ended."""
    number = least + int(scene.rng.integers(0, 8))
    if not command.wait_until(lambda: bool(command.ranks()) and command.made() >= number):
        return False
    time.sleep(float(scene.rng.uniform(0.0, 0.15)))
    return command.process.poll() is None


def again_and_again(scene: Scene, inject: Callable[[], bool]) -> None:
    """Inject faults into the same run, until there are enough: each call of the command goes on where the last ended.

    inject: starts the command and hits it; False where the command was done before that. A complete run begins anew.
    """
    scene.without_results()
    for _ in range(_TRIES * scene.count):
        before = sealed(*scene.part_folders)
        if inject():
            check_sound(*scene.part_folders)
            check_kept(before, *scene.part_folders)
        else:
            finish(scene)
            shutil.rmtree(scene.run)
        if len(scene.injected) >= scene.count:
            break
    finish(scene)
    scene.survive()
    require(len(scene.injected) >= scene.count, "the command was always done before it could be hit")


def finish(scene: Scene) -> None:
    """The same command once more, undisturbed: the set is complete, and nothing sealed was lost."""
    check_sound(*scene.part_folders)
    before = sealed(*scene.part_folders)
    check_said(scene.simulate(), {0})
    check_kept(before, *scene.part_folders)
    check_complete(scene.run, scene.reference.arrays)


def killed_makers(scene: Scene) -> None:
    """kill -9 of makers, one after the other, in one run: while they start, in a sample, or while they seal."""
    scene.without_results()
    scene.settings.append("simulation.workers=3")
    for _ in range(_TRIES):
        if len(scene.injected) < scene.count:
            _kill_makers(scene, run_simulate(scene, item_s=0.2))
    finish(scene)
    scene.survive()


def _kill_makers(scene: Scene, command: Command) -> None:
    killed = []
    while len(scene.injected) < scene.count and command.wait_until(lambda: len(command.ranks()) > 1):
        time.sleep(float(scene.rng.uniform(0.0, 0.3)))
        ranks = command.ranks()
        if not ranks:
            continue
        rank = sorted(ranks)[int(scene.rng.integers(len(ranks)))]
        if send_signal(ranks[rank], signal.SIGKILL):
            if command.made() < len(scene.reference.arrays):  # else it may be at its very end, when nobody waits for it
                killed.append(rank)
            scene.inject(f"kill -9 of maker {rank} after {command.made()} samples")
            while is_alive(ranks[rank]):
                time.sleep(0.001)
    said = command.end()
    check_said(said, {0, 3}, *(rf"rank {rank} was killed by signal 9" for rank in set(killed)))
    check_sound(*scene.part_folders)


def killed_parents(scene: Scene) -> None:
    """kill -9 of the process that the user started, again and again in the same run: its makers end with it."""

    def kill() -> bool:
        command = run_simulate(scene, item_s=SLOW_S)
        if scene.rng.random() < 0.2:
            time.sleep(float(scene.rng.uniform(0.05, 0.5 if scene.warm else 3.0)))  # while it starts
        elif not wait_for_work(scene, command):
            check_said(command.end(), {0})
            return False
        made = command.made()
        if not send_signal(command.process.pid, signal.SIGKILL) or command.process.wait() == 0:
            return False
        code = command.process.wait()
        require(code == -signal.SIGKILL, f"killed with -9, it ended with {code}:\n{command.text}")
        scene.inject(f"kill -9 of the parent after {made} samples")
        require(not wait_for_the_end(scene.folder), f"makers outlive their parent:\n{command.text}")
        return True

    again_and_again(scene, kill)


def killed_and_reported(scene: Scene) -> None:
    """kill -9 of parent and makers at once, as when a node dies: the next run says at what each rank was."""

    def kill() -> bool:
        command = run_simulate(scene, item_s=SLOW_S)
        if not wait_for_work(scene, command, least=1):
            check_said(command.end(), {0})
            return False
        ranks = command.ranks()
        everybody = [command.process.pid, *children_of(command.process.pid)]
        for process in everybody:
            send_signal(process, signal.SIGKILL)
        command.process.wait()
        scene.inject(f"kill -9 of all {len(everybody)} processes after {command.made()} samples")
        require(not wait_for_the_end(scene.folder), f"processes are left:\n{command.text}")
        check_sound(*scene.part_folders)
        before = sealed(*scene.part_folders)
        said = scene.simulate()
        check_said(said, {0}, *(f"rank {rank} of an earlier run ended without a word" for rank in ranks))
        check_kept(before, *scene.part_folders)
        check_complete(scene.run, scene.reference.arrays)
        shutil.rmtree(scene.run)
        return True

    again_and_again(scene, kill)


def stopped_makers(scene: Scene) -> None:
    """SIGSTOP of makers: they give no sign of life, are taken as lost and killed, and others do their samples."""
    scene.without_results()
    scene.settings += ["simulation.workers=3", "simulation.rank_timeout_s=4.0"]
    command = run_simulate(scene, item_s=0.3)
    require(command.wait_until(lambda: len(command.ranks()) == 3 and command.made() >= 2), command.text)
    ranks = command.ranks()
    chosen = [sorted(ranks)[int(number)] for number in scene.rng.permutation(3)[: scene.count]]
    for rank in chosen:
        send_signal(ranks[rank], signal.SIGSTOP)
        scene.inject(f"SIGSTOP of maker {rank} after {command.made()} samples")
    said = command.end()
    check_said(said, {0}, *(f"rank {rank} gave no sign of life for" for rank in chosen))
    require(not any(is_alive(ranks[rank]) for rank in chosen), "a stopped maker is still there")
    finish(scene)
    scene.survive()


_SIGNALS = {
    "SIGTERM to the parent": ("parent", signal.SIGTERM, {143}, "ended by SIGTERM"),
    "SIGUSR2 to the parent": ("parent", signal.SIGUSR2, {85}, "out of time: run the same command again"),
    "SIGINT to all": ("all", signal.SIGINT, {130}, "interrupted"),
    "SIGTERM to a maker": ("maker", signal.SIGTERM, {0, 3}, ""),
    "SIGUSR2 to a maker": ("maker", signal.SIGUSR2, {85, 0}, ""),
    "SIGTERM to all": ("all", signal.SIGTERM, {143}, "ended by SIGTERM"),
}


def signalled(scene: Scene) -> None:
    """What schedulers and users send to end a run: what is made is sealed, and the same command goes on."""

    def send() -> bool:
        start = int(scene.rng.integers(len(_SIGNALS))) if scene.count == 1 else 0
        name = list(_SIGNALS)[(len(scene.injected) + start) % len(_SIGNALS)]
        whom, what, codes, text = _SIGNALS[name]
        command = run_simulate(scene, item_s=0.3)
        if not wait_for_work(scene, command, least=1):
            check_said(command.end(), {0})
            return False
        ranks = list(command.ranks().values())
        targets = {"parent": [command.process.pid], "maker": ranks[-1:], "all": [command.process.pid, *ranks]}[whom]
        for process in targets:
            send_signal(process, what)
        scene.inject(f"{name} after {command.made()} samples")
        check_said(command.end(), codes, text)
        return True

    again_and_again(scene, send)


def out_of_time(scene: Scene) -> None:
    """The time given is over before the work is done."""

    def run_out() -> bool:
        seconds = float(scene.rng.uniform(2.0, 4.0) if scene.warm else scene.rng.uniform(5.0, 8.0))
        began = time.monotonic()
        said = run_simulate(scene, "--time-limit", f"{seconds:.1f}s", item_s=0.6).end()
        if said.code == 0:
            return False  # a quick machine
        scene.inject(f"--time-limit {seconds:.1f}s")
        check_said(said, {85}, "time is up \\(--time-limit", "out of time: run the same command again")
        took = time.monotonic() - began
        require(took < seconds + 60.0, f"ended {took:.0f} s after its start:\n{said.text}")
        return True

    again_and_again(scene, run_out)
