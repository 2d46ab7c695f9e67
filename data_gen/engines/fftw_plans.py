"""Measured FFTW plans, kept as a file: a quarter faster than estimated ones, and the same in every run.

FFTW's planner either estimates, which depends on the sizes alone and often misses, or measures, which comes out
differently from run to run and with it the last bits of the patterns. What it once measured ("wisdom") is therefore
kept in ``fftw_plans.txt``, for the usual grid sizes. FFTW takes it where library and instruction set are those it was
made with; elsewhere, and for other sizes, plans are estimated: the same results to rounding, a little slower.

    python -m data_gen.engines.fftw_plans        # measures again and writes the file (minutes, on an idle machine)
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

PLANNED_PIXELS = (
    *(32, 40, 48, 54, 60, 64, 72, 80, 84, 90, 96, 100, 108, 112, 120, 128, 144, 160, 180, 192, 200, 216, 240, 256),
    *(288, 300, 320, 360, 384, 400, 432, 480, 512),
)
"""Grids whose plans are in the file."""


@cache
def load() -> bool:
    """Hand the file to FFTW, once in a process; says whether FFTW takes it."""
    import pyfftw  # type: ignore[import-untyped]

    text = files("data_gen.engines").joinpath("fftw_plans.txt").read_bytes()
    taken: bool = pyfftw.import_wisdom((b"", text, b""))[1]  # double, single, long double precision
    return taken


def _measure(file: Path) -> None:
    import pyfftw

    from data_gen.engines.fftw import BandLimitedMultislice

    for pixels in PLANNED_PIXELS:
        BandLimitedMultislice(pixels, effort="FFTW_PATIENT")
    file.write_bytes(pyfftw.export_wisdom()[1])


if __name__ == "__main__":
    _measure(Path(__file__).with_suffix(".txt"))
