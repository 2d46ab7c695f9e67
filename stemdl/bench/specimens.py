"""Specimens to measure with: those of the training set."""

from __future__ import annotations

from data_gen.sample import draw_specimen
from data_gen.specimen import Specimen, displaced
from data_gen.worklist import parts
from stemdl.config import Config


def bench_specimens(config: Config, count: int) -> list[Specimen]:
    """The first `count` displaced specimens of the training set, as the simulation stage makes them."""
    (part, _), _ = parts(config)
    sigma = config.specimen.displacement_sigma_angstrom
    chosen = []
    for item in range(min(count, part.samples)):
        at_rest, _ = draw_specimen(config, part, item)
        chosen.append(displaced(at_rest, sigma, (config.run.seed, int(part.phonon_purpose), item, 0)))
    return chosen
