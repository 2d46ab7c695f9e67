"""The `stemdl` command: parses, calls one stage, prints. No logic, and no heavy import before a verb needs it.

Exit codes: 0 done; 2 the user's input is wrong; 3 finished but incomplete (what is missing is named); 1 our fault (the
traceback is kept in the run folder or shown, with how to report it); 130 interrupted from the keyboard; 143 ended by
SIGTERM; 141 whoever read the output has gone.
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
from stemdl.errors import UserError

EXIT_DONE, EXIT_OUR_FAULT, EXIT_USER, EXIT_INCOMPLETE, EXIT_INTERRUPTED = 0, 1, 2, 3, 130
EXIT_NO_READER, EXIT_TERMINATED = 141, 143

# A full or read-only disk, or a missing permission: for the user to mend, and the message names the file.
_MACHINE_SAYS_NO = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})

_RUN, _SHOW = "stemdl.cli_run", "stemdl.cli_show"


class Terminated(KeyboardInterrupt):
    """SIGTERM, as a batch system sends it: to be treated like Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors of the user become a message, ours a saved traceback."""
    parser = build_parser()
    parsed = parser.parse_args(arguments)  # leaves with code 2 itself
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
        return EXIT_USER
    except OSError as error:
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
        epilog="exit codes: 0 done, 2 input is wrong, 3 finished but incomplete, 1 our fault\n"
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
    _add_shards(verbs)
    return parser


Verbs = argparse._SubParsersAction  # argparse gives this class no public name


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
        verb.set_defaults(module=_RUN, function="run_stages", stages=None if name == "run" else (name,))
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
        "both simulation engines on the same specimens, and where the time goes",
        "bench simulate configs/quickstart.yaml --json bench.json",
    )
    _takes_config(verb)
    _writes_json(verb)
    verb.set_defaults(module=_SHOW, function="bench_simulate")


def _add_shards(verbs: Verbs[argparse.ArgumentParser]) -> None:
    group = _verb(verbs, "shards", "look at simulated shards", "shards verify runs/quickstart/shards/train")
    shard_verbs = group.add_subparsers(title="verbs", metavar="VERB", required=True)
    texts = {"list": "name the sealed shards of a folder", "verify": "read every shard and compare its sha256"}
    for name, text in texts.items():
        verb = _verb(shard_verbs, name, text, f"shards {name} runs/quickstart/shards")
        verb.add_argument("folder", metavar="PATH", type=Path, help="folder with a manifest.jsonl, or one above such")
        _writes_json(verb)
        verb.set_defaults(module=_SHOW, function=f"{name}_shards")


def _verb(verbs: Verbs[argparse.ArgumentParser], name: str, text: str, example: str) -> argparse.ArgumentParser:
    return verbs.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"example: stemdl {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _takes_config(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("file", metavar="FILE", type=Path, help="YAML file, see configs/")
    verb.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another value for one key, such as train.lr=1e-3; may be repeated",
    )


def _writes_json(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well, under stable keys")


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 1 is needed")
    return number


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
