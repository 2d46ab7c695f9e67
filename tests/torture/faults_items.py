"""Samples and structures that cannot be: NaN, too bright, without end, deadly; crystals that are none."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.small_run import FCC, write_cif
from tests.torture.checks import check_complete, check_kept, check_said, check_sound, require, sealed
from tests.torture.processes import run_simulate
from tests.torture.scene import Said, Scene

_NAMED = {
    "nan": "NaN or infinite",
    "bright": "of the incident beam",
    "raise": "ZeroDivisionError: a fault inside the simulation",
    "memory": "out of memory",
    "hang": "simulation.item_timeout_s",
    "deaf": "hangs: |was under way in 2 processes",
    "kill": "was under way in 2 processes that were lost|was killed by signal 9",
    "exit": "was under way in 2 processes that were lost|ended with code 7",
}
"""What is said of a sample."""

_ENDURING = ("nan", "bright")


def _survive(scene: Scene, acts: dict[str, str], *more: str, grace_s: float = 30.0) -> None:
    """Run with these acts ("train:5": "nan"): the samples are named and no others suffer; without them all are made."""
    text = ",".join(f"{key}={act}" for key, act in acts.items())
    scene.settings += [*more]
    said = run_simulate(scene, acts=text, grace_s=grace_s).end()
    check_said(said, {3}, *(_NAMED[act] for act in acts.values()))
    _check_record(scene, acts, said)
    check_sound(*scene.part_folders)
    before = sealed(*scene.part_folders)
    require(len(before) > 0, "nothing was sealed beside the samples that failed")
    if any(act in _ENDURING for act in acts.values()):
        check_said(scene.simulate(), {3}, "are not tried again")  # what follows from number and configuration alone
        (scene.shards / "failed.json").unlink()
    check_said(scene.simulate(), {0})
    check_kept(before, *scene.part_folders)
    check_complete(scene.run, scene.reference.arrays)
    scene.survive()


def _check_record(scene: Scene, acts: dict[str, str], said: Said) -> None:
    record = json.loads((scene.shards / "failed.json").read_text(encoding="utf-8"))
    failed = {f"{one['part']}:{one['item']}": one["kind"] for one in record["failed"]}
    slow = {key for key in failed.keys() - acts.keys() if failed[key] in ("time", "rank")}  # on a machine that is busy
    found = sorted(failed.keys() - slow)
    require(found == sorted(acts), f"failed.json names {found}, not {sorted(acts)}:\n{said.text}")


def _choose(scene: Scene, acts: Sequence[str]) -> dict[str, str]:
    """One sample for each act."""
    keys = [f"train:{item}" for item in range(24)] + [f"held_out:{item}" for item in range(6)]
    chosen = scene.rng.permutation(len(keys))[: len(acts)]
    found = {keys[int(index)]: act for index, act in zip(chosen, acts, strict=True)}
    for key, act in found.items():
        scene.inject(f"{act} in {key}")
    return found


def bad_samples(scene: Scene) -> None:
    """Samples that are NaN or too bright, and faults of this program inside a sample."""
    scene.without_results()
    acts = ["nan", "bright", "raise", "memory"]
    _survive(scene, _choose(scene, [acts[number % len(acts)] for number in range(scene.count)]))


def hanging_items(scene: Scene) -> None:
    """Samples that take for ever: some hear their alarm, and some are stuck in a library."""
    scene.without_results()
    acts = ["hang", "deaf"]
    chosen = _choose(scene, [acts[number % len(acts)] for number in range(scene.count)])
    _survive(scene, chosen, "simulation.item_timeout_s=4.0", grace_s=1.0)


def deadly_items(scene: Scene) -> None:
    """Samples that end every process that tries them."""
    scene.without_results()
    acts = ["kill", "exit"]
    chosen = _choose(scene, [acts[number % len(acts)] for number in range(scene.count)])
    _survive(scene, chosen)


def _with_position(text: str) -> str:
    return (
        "data_x\n_cell_length_a 4\n_cell_length_b 4\n_cell_length_c 4\n_cell_angle_alpha 90\n_cell_angle_beta 90\n"
        "_cell_angle_gamma 90\nloop_\n_atom_site_type_symbol\n_atom_site_fract_x\n_atom_site_fract_y\n"
        f"_atom_site_fract_z\n{text}\n"
    )


_STRUCTURES = {
    "NaN as a coordinate": _with_position("Cu nan 0.0 0.0"),
    "an unknown coordinate": _with_position("Cu ? 0.0 0.0"),
    "an infinite coordinate": _with_position("Cu inf 0.0 0.0"),
    "NaN as a cell length": _with_position("Cu 0 0 0").replace("length_a 4", "length_a nan"),
    "a cell without height": _with_position("Cu 0 0 0").replace("length_c 4", "length_c 0"),
    "a flat cell": _with_position("Cu 0 0 0").replace("gamma 90", "gamma 0"),
    "an unknown element": _with_position("Xx 0 0 0"),
    "two atoms at one place": _with_position("Cu 0 0 0\nAu 0.0001 0 0"),
    "no atoms": _with_position(""),
    "half a file": _with_position("Cu 0 0 0")[:90],
    "nothing in it": "",
    "binary noise": "\0\1\2\3" * 200,
    "no CIF": "%PDF-1.7 this is a paper about copper",
    "an occupancy of 7": _with_position("Cu 0 0 0 7").replace("fract_z\n", "fract_z\n_atom_site_occupancy\n"),
}


def bad_structure(scene: Scene) -> None:
    """A structure that is no crystal among the others: it is refused by name, and changes no sample."""
    scene.without_results()
    name = list(_STRUCTURES)[int(scene.rng.integers(len(_STRUCTURES)))]
    path = scene.folder / "cif" / "bad.cif"
    path.write_text(_STRUCTURES[name], encoding="utf-8")
    scene.inject(f"a structure with {name}")
    check_said(scene.simulate(), {0}, "refused: cif:bad|refused: bad", r"bad\.cif")
    check_complete(scene.run, scene.reference.arrays)
    path.unlink()
    check_said(scene.simulate(), {2}, r"crystals\.cif_folders")  # another set of files is another configuration
    check_said(scene.simulate("--fresh"), {0})
    check_complete(scene.run, scene.reference.arrays)
    scene.survive()


def huge_cell(scene: Scene) -> None:
    """A structure that is a crystal, whose cell is too large to ever show an atom: its samples fail by name."""
    scene.without_results()
    length = float(10 ** scene.rng.uniform(5.0, 8.0))
    write_cif(scene.folder / "cif", "huge", [length] * 3, [("Mg", *site) for site in FCC])
    scene.inject(f"a cell of {length:.3g} Å")
    said = scene.simulate()
    check_said(said, {2, 3}, "cif:huge")
    (scene.folder / "cif" / "huge.cif").unlink()
    check_said(scene.simulate(), {2}, r"crystals\.cif_folders")
    check_said(scene.simulate("--fresh"), {0})
    check_complete(scene.run, scene.reference.arrays)
    scene.survive()
