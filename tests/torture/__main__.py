"""`python -m tests.torture`: inject faults, check what must hold, print a table."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.torture.campaign import Case, Result, plan, run_cases
from tests.torture.faults import KINDS
from tests.torture.report import as_markdown, as_table
from tests.torture.scene import make_reference


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign; 0 where every fault was survived, 1 where one was not."""
    asked = _parse(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that all is cleared up
    cases = plan(KINDS, None if asked.short else asked.faults)
    cases = [case for case in cases if not asked.kind or any(word in case.kind.name for word in asked.kind)]
    if asked.only is not None:
        cases = [case for case in cases if case.first <= asked.only < case.first + case.count]
        if not cases:
            print(f"there is no fault {asked.only}", file=sys.stderr)
            return 2
    cases.sort(key=lambda case: not case.kind.slow)  # what waits for processes begins first, and fills the gaps
    print(f"seed {asked.seed}, {sum(case.count for case in cases)} faults in {len(cases)} cases", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="stemdl-torture-"))
    began = time.monotonic()
    results: list[Result] = []
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            reference = make_reference(folder / "reference")
        except BaseException:
            print(said.getvalue(), file=sys.stderr)
            raise
    cases_at_work = run_cases(cases, reference, folder, asked.seed, asked.jobs, keep=asked.keep)
    try:
        for result in cases_at_work:
            results.append(result)
            _tell(result, asked.verbose)
    finally:
        cases_at_work.close()
        if not asked.keep and not any(result.failure for result in results):
            shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - began
    print(as_table(results, seconds))
    if asked.markdown is not None:
        command = f"python -m tests.torture {_words(asked)}"
        date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        asked.markdown.write_text(as_markdown(results, seconds, command, date), encoding="utf-8")
    failed = [result for result in results if result.failure]
    for result in failed:
        print(f"\nFAILED: {_numbers(result.case)} {result.case.kind.name} ({folder}/fault-{result.case.first:03d})")
        print(f"again: python -m tests.torture {_words(asked)} --only {result.case.first}")
        print(result.failure)
    return 1 if failed else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__, allow_abbrev=False)
    parser.add_argument("--faults", type=int, default=200, help="at least so many in all (default 200)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn (default 1)")
    parser.add_argument("--short", action="store_true", help="every kind once")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="the case of this fault alone")
    parser.add_argument("--kind", action="append", metavar="WORDS", help="kinds with these words in their name alone")
    parser.add_argument("--jobs", type=int, default=3, help="cases at a time (default 3)")
    parser.add_argument("--keep", action="store_true", help="keep every folder")
    parser.add_argument("--verbose", action="store_true", help="a line for every fault")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table for the documentation")
    return parser.parse_args(arguments)


def _words(asked: argparse.Namespace) -> str:
    size = "--short" if asked.short else f"--faults {asked.faults}"
    return f"{size} --seed {asked.seed}"


def _tell(result: Result, verbose: bool) -> None:
    state = "FAILED" if result.failure else f"skipped: {result.skipped}" if result.skipped else "survived"
    print(f"{_numbers(result.case):>9}  {result.case.kind.name:<36} {result.seconds:6.1f} s  {state}", flush=True)
    if verbose or result.failure:
        for what in result.injected:
            print(f"{'':11}{what}", flush=True)


def _numbers(case: Case) -> str:
    last = case.first + case.count - 1
    return str(case.first) if case.count == 1 else f"{case.first}-{last}"


if __name__ == "__main__":
    sys.exit(main())
