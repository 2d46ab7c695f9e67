"""`stemdl` with samples that are slow, damaged or deadly: run as a program in the place of `python -m stemdl.cli`.

What it does to which sample stands in the environment, which every process of a run inherits:
TORTURE_ITEM_S makes every sample take so many seconds more; TORTURE_ACTS names acts by part and item
("train:5=hang,held_out:2=nan"); TORTURE_GRACE_S is how long an item that does not listen to its alarm may take.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import data_gen.sample
import data_gen.sharing.coordinator
import data_gen.sharing.local
import data_gen.sharing.maker
import stemdl.cli
import stemdl.cli_run
from data_gen.engines import Engine
from data_gen.sharing.vault import Berth
from data_gen.worklist import Part
from stemdl.config import Config
from stemdl.shards import Sample

_real_make = data_gen.sharing.local._make
_real: Any = data_gen.sample.make_sample  # not the maker's, which this module has changed if it is imported twice


def _act(act: str, sample: Callable[[], Sample]) -> Sample:
    """Do to a sample, or to its process, what is asked."""
    if act == "nan":
        made = sample()
        amplitude = np.array(made.amplitude, dtype=np.float32)
        amplitude[0, 0, 0, 0] = np.nan
        return dataclasses.replace(made, amplitude=amplitude)
    if act == "bright":
        made = sample()
        return dataclasses.replace(made, amplitude=np.asarray(made.amplitude, dtype=np.float32) * 3)
    if act == "hang":
        time.sleep(1000.0)
    elif act == "deaf":  # hangs inside a library, where no alarm is heard
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        time.sleep(1000.0)
    elif act == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif act == "exit":
        os._exit(7)
    elif act == "raise":
        raise ZeroDivisionError("a fault inside the simulation")
    elif act == "memory":
        raise MemoryError("cannot allocate 12 TB")
    raise AssertionError(f"unknown act {act!r}")


def make_sample(config: Config, part: Part, item: int, engine: Engine) -> Sample:
    """In the place of `data_gen.sample.make_sample`."""
    time.sleep(float(os.environ.get("TORTURE_ITEM_S", "0")))
    acts = dict(text.split("=") for text in os.environ.get("TORTURE_ACTS", "").split(",") if text)
    act = acts.get(f"{part.name}:{item}")
    if act is not None:
        return _act(act, lambda: _real(config, part, item, engine))
    return _real(config, part, item, engine)  # type: ignore[no-any-return]


@contextlib.contextmanager
def hooked(hook: Callable[[str, int], None]) -> Iterator[None]:
    """Inside, call `hook(part, item)` before every sample of this process."""

    def make(config: Config, part: Part, item: int, engine: Engine) -> Sample:
        hook(part.name, item)
        return make_sample(config, part, item, engine)

    maker = vars(data_gen.sharing.maker)
    before = maker["make_sample"]
    maker["make_sample"] = make
    try:
        yield
    finally:
        maker["make_sample"] = before


def install() -> None:
    """Put this module's samples into the place of the real ones."""
    vars(data_gen.sharing.maker)["make_sample"] = make_sample
    data_gen.sharing.coordinator._HANG_GRACE_S = float(os.environ.get("TORTURE_GRACE_S", "30"))


def be_the_program(arguments: list[str]) -> None:
    """For a fork of a process that has loaded all libraries: be `stemdl`, with makers that are forks in their turn."""
    install()
    real = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: real("fork")  # type: ignore[assignment]
    data_gen.sharing.local._make = _make_alone
    stemdl.cli_run._STARTED = time.monotonic()
    code = stemdl.cli.main(arguments)
    sys.stdout.flush()
    os._exit(code)


def _make_alone(config: Config, berth: Berth, connection: Connection[Any, Any], config_hash: str) -> None:
    """A maker closes what it has inherited of the others' pipes, which else would not end with their parent."""
    for one in gc.get_objects():
        if isinstance(one, Connection) and one is not connection:
            one.close()
    _real_make(config, berth, connection, config_hash)


if os.environ.get("TORTURE_SCENE"):  # in every process of a run that the campaign starts, and nowhere else
    install()

if __name__ == "__main__":
    sys.exit(stemdl.cli.main())
