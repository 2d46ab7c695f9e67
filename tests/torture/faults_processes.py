"""Processes that are killed, stopped or signalled while `stemdl simulate` works with makers of this machine."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from tests.torture.checks import check_complete, check_kept, check_said, check_sound, require, sealed
from tests.torture.processes import Command, children_of, is_alive, run_simulate, send_signal, wait_for_the_end
from tests.torture.scene import CampaignFailure, Scene, some

SLOW = {"TORTURE_ITEM_S": "0.12"}
"""Enough time to hit a sample, or what comes between two."""

_TRIES = 3


def wait_for_work(scene: Scene, command: Command, *, least: int = 0) -> bool:
    """Until a drawn number of samples is made, and a moment more; False where the run has ended."""
    number = least + int(scene.rng.integers(0, 8))
    if not command.wait_until(lambda: bool(command.ranks()) and command.made() >= number):
        return False
    time.sleep(float(scene.rng.uniform(0.0, 0.15)))
    return command.popen.poll() is None


def finish(scene: Scene) -> None:
    """The same command once more, undisturbed: the set is complete, and nothing sealed was lost."""
    check_sound(*scene.part_folders)
    before = sealed(*scene.part_folders)
    said = scene.simulate()
    check_said(said, {0})
    check_kept(before, *scene.part_folders)
    check_complete(scene.run, scene.reference.arrays)


def killed_makers(scene: Scene) -> None:
    """kill -9 of makers, one after the other, in one run: while they start, in a sample, or while they seal."""
    scene.without_results()
    scene.settings.append("simulation.workers=3")
    variables = {**SLOW, "TORTURE_ITEM_S": "0.2"} | ({"TORTURE_MAKERS": "fork"} if scene.count > 2 else {})
    for _ in range(_TRIES):
        command = run_simulate(scene, **variables)
        killed = []
        while len(scene.injected) < scene.count and command.wait_until(lambda: len(command.ranks()) > 1):
            time.sleep(float(scene.rng.uniform(0.0, 0.3)))
            ranks = command.ranks()
            if not ranks:
                continue
            rank = sorted(ranks)[int(scene.rng.integers(len(ranks)))]
            if send_signal(ranks[rank], signal.SIGKILL):
                killed.append(rank)
                scene.inject(f"kill -9 of maker {rank} after {command.made()} samples")
                command.wait_until(lambda process=ranks[rank]: not is_alive(process))  # type: ignore[misc]
        said = command.end()
        check_said(said, {0, 3}, *(rf"rank {rank} was killed by signal 9" for rank in set(killed[:-1])))
        check_sound(*scene.part_folders)
        if len(scene.injected) >= scene.count:
            break
    finish(scene)
    scene.survive()


def killed_parents(scene: Scene) -> None:
    """kill -9 of the process that the user started, again and again in the same run: its makers end with it."""
    scene.without_results()
    cut_off = False
    while len(scene.injected) < scene.count:
        before = sealed(*scene.part_folders)
        command = run_simulate(scene, **SLOW)
        if scene.rng.random() < 0.2:
            time.sleep(float(scene.rng.uniform(0.1, 3.0)))  # while it starts
        elif not wait_for_work(scene, command):
            check_said(command.end(), {0})
            break
        made = command.made()
        if not send_signal(command.popen.pid, signal.SIGKILL):
            break
        code = command.popen.wait()
        require(code in (0, -signal.SIGKILL), f"killed with -9, it ended with {code}:\n{command.text}")
        if code == 0:
            break
        scene.inject(f"kill -9 of the parent after {made} samples")
        require(not wait_for_the_end(scene.folder), f"makers outlive their parent:\n{command.text}")
        if cut_off:
            require("of an earlier run ended without a word" in command.text or made == 0, command.text)
        cut_off = bool(made)
        check_sound(*scene.part_folders)
        check_kept(before, *scene.part_folders)
    finish(scene)
    scene.survive()


def stopped_makers(scene: Scene) -> None:
    """SIGSTOP of makers: they give no sign of life, are taken as lost and killed, and others do their samples."""
    scene.without_results()
    scene.settings += ["simulation.workers=3", "simulation.rank_timeout_s=4.0"]
    command = run_simulate(scene, TORTURE_MAKERS="fork", TORTURE_ITEM_S="0.3")
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
    "SIGUSR2 to a maker": ("maker", signal.SIGUSR2, {85}, "out of time: run the same command again"),
    "SIGTERM to all": ("all", signal.SIGTERM, {143}, "ended by SIGTERM"),
}


def signalled(scene: Scene) -> None:
    """What schedulers and users send to end a run in good order: what is made is sealed, and the same command goes on."""
    scene.without_results()
    for number in range(scene.count):
        names = list(_SIGNALS)
        name = names[number] if scene.count == len(names) else some(scene.rng, names)
        whom, what, codes, text = _SIGNALS[name]
        before = sealed(*scene.part_folders)
        command = run_simulate(scene, TORTURE_ITEM_S="0.3")
        if not wait_for_work(scene, command, least=1):
            check_said(command.end(), {0})
            break
        ranks = list(command.ranks().values())
        targets = {"parent": [command.popen.pid], "maker": ranks[:1], "all": [command.popen.pid, *ranks]}[whom]
        for process in targets:
            send_signal(process, what)
        scene.inject(f"{name} after {command.made()} samples")
        said = command.end()
        check_said(said, codes | ({0} if whom == "maker" else set()), *((text,) if text and said.code else ()))
        check_sound(*scene.part_folders)
        check_kept(before, *scene.part_folders)
    finish(scene)
    scene.survive()


def out_of_time(scene: Scene) -> None:
    """The time given is over before the work is done."""
    scene.without_results()
    for _ in range(scene.count):
        before = sealed(*scene.part_folders)
        seconds = float(scene.rng.uniform(5.0, 8.0))
        began = time.monotonic()
        said = run_simulate(scene, "--time-limit", f"{seconds:.1f}s", TORTURE_ITEM_S="0.6").end()
        scene.inject(f"--time-limit {seconds:.1f}s")
        if said.code == 0:
            break  # a quick machine
        check_said(said, {85}, "time is up \\(--time-limit", "out of time: run the same command again")
        if time.monotonic() - began > seconds + 60.0:
            raise CampaignFailure(f"ended {time.monotonic() - began:.0f} s after its start:\n{said.text}")
        check_sound(*scene.part_folders)
        check_kept(before, *scene.part_folders)
    finish(scene)
    scene.survive()


def killed_and_reported(scene: Scene) -> None:
    """kill -9 of parent and makers at once, as when a node dies: the next run says at what each rank was."""
    scene.without_results()
    while len(scene.injected) < scene.count:
        command = run_simulate(scene, **SLOW)
        if not wait_for_work(scene, command, least=1):
            check_said(command.end(), {0})
            break
        ranks = command.ranks()
        everybody = [command.popen.pid, *children_of(command.popen.pid)]
        for process in everybody:
            send_signal(process, signal.SIGKILL)
        command.popen.wait()
        scene.inject(f"kill -9 of all {len(everybody)} processes after {command.made()} samples")
        require(not wait_for_the_end(scene.folder), f"processes are left:\n{command.text}")
        _check_named(scene, ranks)
    finish(scene)
    scene.survive()


def _check_named(scene: Scene, ranks: dict[int, int]) -> None:
    """Run once more, for a moment: every rank that was cut off is named with what it was making."""
    check_sound(*scene.part_folders)
    command = run_simulate(scene, **SLOW)
    named = [f"rank {rank} of an earlier run ended without a word" for rank in ranks]
    command.wait_until(lambda: all(text in command.text for text in named))
    require(all(text in command.text for text in named), f"nothing says {named}:\n{command.text}")
    send_signal(command.popen.pid, signal.SIGTERM)
    check_said(command.end(), {0, 143})


def log_of(folder: Path) -> str:
    """All logs of a scene's commands."""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("command-*.log")))
