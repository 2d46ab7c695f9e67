"""The `stemdl` command: parses, calls one stage, prints. No logic, and no heavy import before a verb needs it.

Exit codes: 0 done; 2 the user's input is wrong; 3 finished but incomplete (what is missing is named); 1 our fault (the
traceback is kept in the run folder or shown, with how to report it); 130 interrupted from the keyboard; 143 ended by
SIGTERM; 141 whoever read the output has gone; 85 the time given is over: the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stemdl import __version__
from stemdl.cli_arguments import Verbs, given_path
from stemdl.cli_arguments import counts as _counts
from stemdl.cli_arguments import numbers as _numbers
from stemdl.cli_arguments import positive as _positive
from stemdl.cli_arguments import takes_config as _takes_config
from stemdl.cli_arguments import verb as _verb
from stemdl.cli_arguments import words as _words
from stemdl.cli_arguments import writes_json as _writes_json
from stemdl.cli_data_verbs import add_cbed, add_shards
from stemdl.errors import UserError

EXIT_DONE, EXIT_OUR_FAULT, EXIT_USER, EXIT_INCOMPLETE, EXIT_INTERRUPTED = 0, 1, 2, 3, 130
EXIT_NO_READER, EXIT_TERMINATED, EXIT_REQUEUE = 141, 143, 85

# A full or read-only disk, or a missing permission: for the user to mend, and the message names the file.
_MACHINE_SAYS_NO = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})

_RUN, _SHOW = "stemdl.cli_run", "stemdl.cli_show"


class Terminated(KeyboardInterrupt):
    """SIGTERM, as a batch system sends it: to be treated like Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors of the user become a message, ours a saved traceback."""
    parser = build_parser()
    parsed = parser.parse_args(arguments)  # leaves with code 2 itself
    code = _guarded(parsed)
    if getattr(parsed, "team", None) is not None:
        parsed.team.dismiss(code)  # the other ranks of the job, after everything is said here
    return code


def _guarded(parsed: argparse.Namespace) -> int:
    """Run the command; every error becomes a message and an exit code."""
    try:
        with _sigterm_raises():
            command = getattr(importlib.import_module(parsed.module), parsed.function)
            code = int(command(parsed))
            sys.stdout.flush()  # a reader that has gone is noticed here, not when the interpreter ends
            return code
    except Terminated:
        print("\nended by SIGTERM: what is complete is kept; run the same command again to go on", file=sys.stderr)
        return EXIT_TERMINATED
    except KeyboardInterrupt:
        print("\ninterrupted: what is complete is kept; run the same command again to go on", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone (stemdl ... | head); python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_NO_READER
    except UserError as error:
        print(f"stemdl: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        given = given_path(parsed, error)
        if given:
            print(f"stemdl: {given}: {error.filename}: {os.strerror(error.errno or 0)}", file=sys.stderr)
            return EXIT_USER
        if error.errno not in _MACHINE_SAYS_NO:
            return _our_fault(error, getattr(parsed, "run_folder", None))
        run_folder = getattr(parsed, "run_folder", None)
        where = f"{run_folder}: " if error.filename is None and run_folder is not None else ""
        print(f"stemdl: {where}{error}; what is complete is kept", file=sys.stderr)
        return EXIT_USER
    except Exception as error:  # noqa: BLE001  (the one place where everything ends: kept, shown, exit 1)
        return _our_fault(error, getattr(parsed, "run_folder", None))


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Inside, the first SIGTERM raises Terminated in the main thread; a second one ends the process at once."""

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line. Each verb names the module and function that serve it, imported when it is called."""
    parser = argparse.ArgumentParser(
        prog="stemdl",
        description="From 4D-STEM diffraction patterns to the projected electrostatic potential.",
        epilog="exit codes: 0 done, 2 input is wrong, 3 finished but incomplete, 85 out of time, 1 our fault\n"
        "example: stemdl run configs/quickstart.yaml",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"stemdl {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    _add_stages(verbs)
    _add_checks(verbs)
    _add_model(verbs)
    _add_bench(verbs)
    add_shards(verbs)
    add_cbed(verbs)
    return parser


def _add_stages(verbs: Verbs[argparse.ArgumentParser]) -> None:
    stages = (
        ("run", "simulate, train, reconstruct held-out crystals, report; each stage skipped when complete", ""),
        ("simulate", "simulate the training set and the held-out fields", "simulation.samples=100"),
        ("train", "train the network on simulated shards", "train.lr=1e-3"),
    )
    for name, text, override in stages:
        verb = _verb(verbs, name, text, f"{name} configs/quickstart.yaml" + (f" --set {override}" if override else ""))
        _takes_config(verb)
        verb.add_argument(
            "--fresh",
            action="store_true",
            help="move results of another configuration aside (to old-N in the run folder) in place of refusing",
        )
        if name != "train":
            verb.add_argument(
                "--time-limit",
                metavar="TIME",
                help="stop in good order before that: 90s, 45m, 2h, HH:MM:SS, D-HH:MM:SS (default: the scheduler's)",
            )
        function = "run_stages" if name == "run" else name
        verb.set_defaults(module=_RUN, function=function, stages=None if name == "run" else (name,))
    verb = _verb(
        verbs, "stage", "copy the shards of a run to the storage of every node", "stage configs/quickstart.yaml"
    )
    _takes_config(verb)
    verb.set_defaults(module="stemdl.cli_stage", function="stage")
    verb = _verb(verbs, "report", "draw the report of a run folder again", "report runs/quickstart")
    verb.add_argument("folder", metavar="RUN_FOLDER", type=Path, help="folder of a run, with its config.yaml")
    verb.set_defaults(module=_RUN, function="report")


def _add_checks(verbs: Verbs[argparse.ArgumentParser]) -> None:
    verb = _verb(
        verbs,
        "validate",
        "check a configuration and the physics it describes, before anything long",
        "validate configs/quickstart.yaml --set microscope.energy_kev=200",
    )
    _takes_config(verb)
    verb.add_argument("--ranks", type=_positive, default=1, metavar="N", help="processes it is to run on (default 1)")
    verb.set_defaults(module=_RUN, function="validate")

    verb = _verb(verbs, "doctor", "what this machine has, and what follows", "doctor --json doctor.json")
    verb.add_argument("--folder", type=Path, default=Path(), help="where runs are to be kept (default: here)")
    _writes_json(verb)
    verb.set_defaults(module=_SHOW, function="doctor")


def _add_model(verbs: Verbs[argparse.ArgumentParser]) -> None:
    group = _verb(verbs, "model", "look at a network", "model describe configs/paper-2019.yaml")
    model_verbs = group.add_subparsers(title="verbs", metavar="VERB", required=True)
    verb = _verb(
        model_verbs,
        "describe",
        "weights, FLOP per sample, memory, layers",
        "model describe configs/paper-2019.yaml --set network.growth=256 --set network.kernel=5",
    )
    _takes_config(verb)
    _writes_json(verb)
    verb.set_defaults(module=_SHOW, function="describe_model")


def _add_bench(verbs: Verbs[argparse.ArgumentParser]) -> None:
    group = _verb(verbs, "bench", "measure speed", "bench simulate configs/quickstart.yaml")
    bench_verbs = group.add_subparsers(title="verbs", metavar="VERB", required=True)
    verb = _verb(
        bench_verbs,
        "simulate",
        "our engine and abTEM on the same specimens, and where the time goes",
        "bench simulate configs/quickstart.yaml --specimens 3 --json bench.json",
    )
    _takes_config(verb)
    verb.add_argument("--specimens", type=_positive, default=6, metavar="N", help="specimens of the training set")
    verb.add_argument("--repeats", type=_positive, default=5, metavar="N", help="times each (default 5)")
    _writes_json(verb)
    verb.set_defaults(module=_SHOW, function="bench_simulate")
    verb = _verb(
        bench_verbs,
        "prism",
        "multislice against PRISM on scans of several sizes, and what the cost model chooses",
        "bench prism configs/quickstart.yaml --scans 8,16,32",
    )
    _takes_config(verb)
    verb.add_argument("--scans", type=_counts, default=(8, 16, 32), metavar="N,N", help="positions along a side")
    verb.add_argument("--semiangles", type=_numbers, default=(), metavar="A,A", help="mrad (default: the configured)")
    verb.add_argument("--repeats", type=_positive, default=2, metavar="N", help="times each (default 2)")
    _writes_json(verb)
    verb.set_defaults(module=_SHOW, function="bench_prism")
    verb = _verb(
        bench_verbs,
        "memory",
        "largest memory of a simulating process against simulation.probe_chunk",
        "bench memory configs/quickstart.yaml --chunks 1,16,64",
    )
    _takes_config(verb)
    verb.add_argument("--chunks", type=_counts, default=(1, 16, 64), metavar="N,N", help="numbers of waves at once")
    _writes_json(verb)
    verb.set_defaults(module=_SHOW, function="bench_memory")
    verb = _verb(
        bench_verbs,
        "ranks",
        "the simulation on 1, 2, ... MPI ranks of this machine: speed-up and idle time",
        "bench ranks configs/quickstart.yaml --ranks 1,2 --set specimen.thickness_angstrom=[10,300]",
    )
    _takes_config(verb)
    verb.add_argument("--ranks", type=_counts, default=(1, 2), metavar="N,N", help="numbers of ranks (default 1,2)")
    verb.add_argument("--repeats", type=_positive, default=3, metavar="N", help="runs of each, in turn (default 3)")
    _writes_json(verb)
    verb.set_defaults(module=_SHOW, function="bench_ranks")
    _add_bench_comm(bench_verbs)


def _add_bench_comm(verbs: Verbs[argparse.ArgumentParser]) -> None:
    verb = _verb(
        verbs,
        "comm",
        "training steps with each way to exchange gradients; control bytes; the model up to 27,600 ranks",
        "bench comm configs/quickstart.yaml --ranks 2,4 --json comm.json",
    )
    _takes_config(verb)
    verb.add_argument(
        "--parts",
        type=_words("steps", "counts", "model"),
        default=("steps", "counts", "model"),
        metavar="P,P",
        help="what to do, of steps, counts, model (default: all)",
    )
    verb.add_argument("--ranks", type=_counts, default=(2, 4), metavar="N,N", help="for the steps (default 2,4)")
    verb.add_argument(
        "--workloads",
        type=_words("synthetic", "network"),
        default=("synthetic", "network"),
        metavar="W,W",
        help="synthetic (144 gradients of 67 MiB), network (the configured one on random fields); default both",
    )
    verb.add_argument("--steps", type=_positive, default=30, metavar="N", help="steps measured of each (default 30)")
    verb.add_argument("--batch", type=_positive, default=4, metavar="N", help="fields of a rank (default 4)")
    verb.add_argument(
        "--count-ranks",
        type=_counts,
        default=(2, 4, 8, 16, 32, 64),
        metavar="N,N",
        help="ranks of an mpirun on this machine for the counts (default 2,4,8,16,32,64)",
    )
    verb.add_argument("--picture", type=Path, metavar="FILE", help="draw the model (.png)")
    _writes_json(verb)
    verb.set_defaults(module=_SHOW, function="bench_comm")


def _our_fault(error: Exception, run_folder: Path | None) -> int:
    """Keep the traceback in the run folder, or show it where there is none, and say what to do with it."""
    text = "".join(traceback.format_exception(error))
    print(f"stemdl: {type(error).__name__}: {error}", file=sys.stderr)
    where = _saved(text, run_folder) if run_folder is not None and run_folder.is_dir() else None
    if where is None:
        print(text, file=sys.stderr)
    print(
        f"This is a fault of stemdl, not yours. What happened is in {where or 'the lines above'}\n"
        "Please report it with that text, your configuration and the output of `stemdl doctor`.",
        file=sys.stderr,
    )
    return EXIT_OUR_FAULT


def _saved(text: str, run_folder: Path) -> Path | None:
    path = run_folder / "log" / f"failure-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"stemdl {__version__}: {' '.join(sys.argv)}\n\n{text}", encoding="utf-8")
    except OSError as unwritable:
        print(f"stemdl: {path} cannot be written: {unwritable}", file=sys.stderr)
        return None
    return path


if __name__ == "__main__":
    sys.exit(main())
