"""`stemdl` with samples that are slow, damaged or deadly: run as a program in the place of `python -m stemdl.cli`.

What it does to which sample stands in the environment, which every process of a run inherits:
TORTURE_ITEM_S makes every sample take so many seconds more; TORTURE_ACTS names acts by part and item
("train:5=hang,held_out:2=nan"); TORTURE_MAKERS=fork lets makers start quickly, from one process that has loaded all
libraries; TORTURE_GRACE_S is how long an item that does not listen to its alarm may take.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import data_gen.sample
import data_gen.sharing.coordinator
import data_gen.sharing.maker
from data_gen.engines import Engine
from data_gen.worklist import Part
from stemdl.config import Config
from stemdl.shards import Sample

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

    before = data_gen.sharing.maker.make_sample
    data_gen.sharing.maker.make_sample = make
    try:
        yield
    finally:
        data_gen.sharing.maker.make_sample = before


def _start_makers_quickly() -> None:
    real = multiprocessing.get_context
    real("forkserver").set_forkserver_preload(["tests.torture.driver"])
    multiprocessing.get_context = lambda method=None: real("forkserver")  # type: ignore[assignment,misc]


if os.environ.get("TORTURE_SCENE"):  # in every process of a run that the campaign starts, and nowhere else
    data_gen.sharing.maker.make_sample = make_sample
    data_gen.sharing.coordinator._HANG_GRACE_S = float(os.environ.get("TORTURE_GRACE_S", "30"))

if __name__ == "__main__":
    from stemdl.cli import main

    if os.environ.get("TORTURE_MAKERS") == "fork":
        _start_makers_quickly()
    sys.exit(main())
