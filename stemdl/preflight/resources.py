"""Estimates of memory and disk against what this machine has, right within a factor of two or three.

They never give more than a warning: a job may run elsewhere than where its configuration is checked.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from stemdl.config import Config
from stemdl.config.simulation import Sampling
from stemdl.preflight.findings import Finding, judge
from stemdl.preflight.machine import bytes_in_words, cores, free_disk_bytes, memory_bytes

if TYPE_CHECKING:
    from stemdl.models.describe import ModelDescription

COMPLEX64, FLOAT32, FLOAT16 = 8, 4, 2
PROCESS_BYTES = 350 * 2**20  # a Python process with torch loaded
ABTEM_BYTES = 220 * 2**20  # what abTEM and numba add
KEPT_PROBES_BYTES = 256 * 2**20  # probes are kept from specimen to specimen up to here, and made again above
CHUNK_BYTES = 10 * 8  # a pixel of a chunk's waves: made in complex128, then in real and reciprocal space


def check_resources(config: Config, ranks: int, description: ModelDescription | None) -> list[Finding]:
    """Memory of simulation, data set and network (None where it cannot be built), and disk of the shards."""
    limit = memory_bytes()
    findings = [_simulation(config, limit), _data_set(config, limit)]
    if description is not None:
        findings.append(_network(config, ranks, description, limit))
    return [*findings, _disk(config)]


def simulation_bytes(config: Config, sampling: Sampling) -> float:
    """Memory in bytes of one process that simulates: the probes kept, a chunk of waves, the slices, two samples."""
    pixels = (config.specimen.box_angstrom / sampling.pixel_angstrom) ** 2
    positions = math.prod(config.scan.positions)
    slices = math.ceil(config.specimen.thickness_angstrom[1] / sampling.slice_angstrom)
    kept = min(KEPT_PROBES_BYTES, positions * pixels * COMPLEX64)
    waves = CHUNK_BYTES * min(config.simulation.probe_chunk, positions)
    potentials = slices * (FLOAT32 + 2 * COMPLEX64)  # potential, its spectrum, its transmission
    patterns = 2 * positions * math.prod(config.detector.pixels) * FLOAT32
    engine = ABTEM_BYTES if config.simulation.engine == "abtem" else 0
    return PROCESS_BYTES + engine + kept + pixels * (waves + potentials) + patterns


def sample_bytes(config: Config) -> float:
    """Bytes of one sample in a shard: amplitudes as float16, the potential as float32."""
    patterns = math.prod(config.scan.positions) * math.prod(config.detector.pixels) * FLOAT16
    rows, columns = (extent / config.target.pixel_angstrom for extent in config.scan.field_angstrom)
    return patterns + rows * columns * FLOAT32


def _simulation(config: Config, limit: int) -> Finding:
    one = max(simulation_bytes(config, config.simulation), simulation_bytes(config, config.held_out))
    workers = config.simulation.workers or cores()
    words = [bytes_in_words(size) for size in (one, one * workers, limit)]
    found = f"{workers} process{'' if workers == 1 else 'es'} of about {words[0]}, {words[1]} of {words[2]}"
    fitting = int(limit // one)
    if fitting >= 1:
        right, key = f"simulation.workers: {fitting}, or larger pixels", "simulation.workers"
    else:
        right, key = (
            "one process that fits: fewer probes at once, larger pixels, a smaller box",
            "simulation.probe_chunk",
        )
    return judge(one * workers > limit, "warning", "memory: simulation", found, right, key)


def _data_set(config: Config, limit: int) -> Finding:
    samples = config.simulation.samples
    size = samples * sample_bytes(config)
    found = (
        f"{samples} fields of {bytes_in_words(sample_bytes(config))}, {bytes_in_words(size)} of {bytes_in_words(limit)}"
    )
    fitting = int(0.5 * limit // sample_bytes(config))
    right = f"at most {fitting} fields to be kept in half of the memory; more are read from disk again and again"
    return judge(size > 0.5 * limit, "warning", "memory: data set", found, right, "simulation.samples")


def _network(config: Config, ranks: int, description: ModelDescription, limit: int) -> Finding:
    fields = max(1, config.train.batch // ranks)
    one, state = description.activation_bytes_per_sample, description.training_state_bytes
    need = PROCESS_BYTES + state + fields * one
    words = [bytes_in_words(size) for size in (one, state, need, limit)]
    found = f"{fields} fields a step and rank, {words[0]} each, and {words[1]} of weights and their state: {words[2]}"
    found += f" of {words[3]} in this machine"
    fitting = int((limit - PROCESS_BYTES - state) // one) * ranks
    right = f"train.batch: {fitting}" if fitting > 0 else "a smaller network or field"
    right += ", or training on a machine with more memory"
    return judge(need > limit, "warning", "memory: network", found, right, "train.batch")


def _disk(config: Config) -> Finding:
    fields = config.simulation.samples + config.held_out.samples
    need = fields * sample_bytes(config)
    shards = config.run.folder / "shards"
    have = sum(file.stat().st_size for file in shards.rglob("*.h5")) if shards.is_dir() else 0
    place, free = free_disk_bytes(config.run.folder)
    found = f"{fields} fields of {bytes_in_words(sample_bytes(config))} make {bytes_in_words(need)}"
    found += f", {bytes_in_words(have)} there already" if have else ""
    found += f"; {bytes_in_words(free)} free at {place}"
    right = f"simulation.samples: {int(free * 0.9 // sample_bytes(config))} at most, or a run.folder on a larger disk"
    return judge(need - have > 0.9 * free, "warning", "disk: shards", found, right, "run.folder")
