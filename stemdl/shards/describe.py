"""One sample in words: what it is, what its numbers are, where it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from stemdl.shards.schema import Sample, ShardAxes

_LONGEST_VALUE = 100


def describe_sample(sample: Sample, axes: ShardAxes) -> str:
    """Lines of name and value, for a terminal or beside a picture."""
    return "\n".join(f"{name:<12}{value}" for name, value in _lines(sample, axes))


def _lines(sample: Sample, axes: ShardAxes) -> Iterator[tuple[str, str]]:
    record = sample.provenance
    yield "item", str(sample.item)
    yield "crystal", f"{record['crystal']}, {record.get('formula', 'formula unknown')}"
    sy, sx, qy, qx = sample.amplitude.shape
    yield "scan", f"{sy} x {sx} positions, step {axes.scan_step_angstrom:.6g} Å"
    yield "detector", f"{qy} x {qx} pixels of {axes.dk_per_angstrom:.6g} 1/Å"
    intensity = sample.amplitude.astype(np.float64) ** 2
    sums = intensity.sum(axis=(2, 3))
    yield "recorded", f"{sums.min():.4f} to {sums.max():.4f} of the beam in a pattern, mean {sums.mean():.4f}"
    low, high, brightest = sample.amplitude.min(), sample.amplitude.max(), intensity.max()
    yield "amplitude", f"{low:.3g} to {high:.3g}, brightest pixel {brightest:.3g} of the beam"
    y, x = sample.potential.shape
    low, high, mean = sample.potential.min(), sample.potential.max(), sample.potential.mean(dtype=np.float64)
    pixels = f"{y} x {x} pixels of {axes.potential_pixel_angstrom:.6g} Å"
    yield "potential", f"{pixels}: {low:.1f} to {high:.1f} V·Å, mean {mean:.1f}"
    for number, (name, value) in enumerate(sample.parameters.items()):
        yield "parameters" if number == 0 else "", f"{name} {value:.6g}"
    flat = [pair for pair in _flat(record, "") if pair[0] not in ("crystal", "formula")]
    for number, (name, text) in enumerate(flat):
        yield "provenance" if number == 0 else "", f"{name} {text}"


def _flat(record: dict[str, object], above: str) -> Iterator[tuple[str, str]]:
    """Nested keys joined by dots, long values cut."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
            continue
        text = value if isinstance(value, str) else json.dumps(value)
        yield f"{above}{name}", text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."
