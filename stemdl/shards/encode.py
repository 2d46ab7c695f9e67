"""Samples in memory to what a shard stores, with every check that can be made before a byte is written."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stemdl.shards.schema import Sample, ShardError

INTENSITY_TOLERANCE = 1e-3
"""How far a pattern may sum above the incident beam: float16 rounds intensities by up to 2**-10."""

_PARAMETER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")  # no "/" or ".": HDF5 would take it as a path
_CHUNK_LIMIT_BYTES = 2**32 - 1  # one sample is one chunk, and a chunk is at most this long in the HDF5 format


@dataclass(frozen=True, eq=False)
class EncodedSample:
    """A checked sample as stored: amplitude f2 (sy, sx, qy, qx), potential f4 (y, x), provenance one line of JSON.

    part: of the run, which the provenance says; empty where it says none.
    """

    item: int
    amplitude: np.ndarray
    potential: np.ndarray
    parameters: dict[str, float]
    provenance: str
    part: str = ""

    def without_values(self) -> EncodedSample:
        """The same with arrays that keep their shape and take no memory."""
        return dataclasses.replace(self, amplitude=_hollow(self.amplitude), potential=_hollow(self.potential))


def _hollow(array: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)


def encode_sample(sample: Sample) -> EncodedSample:
    """Check a sample and bring it to the stored types.

    Raises
    ------
    ShardError
        Names the item and what is wrong: NaN, infinite or negative values, a pattern brighter than the incident beam,
        a wrong number of axes, a parameter that is not a finite number, provenance that JSON cannot hold.
    """
    if isinstance(sample.item, bool) or not isinstance(sample.item, (int, np.integer)) or sample.item < 0:
        raise ShardError(f"item {sample.item!r}: the number in the work list must be an integer ≥ 0")
    where = f"item {int(sample.item)}"
    return EncodedSample(
        item=int(sample.item),
        amplitude=_encode_amplitude(sample.amplitude, where),
        potential=_encode_potential(sample.potential, where),
        parameters=_encode_parameters(sample.parameters, where),
        provenance=_encode_provenance(sample.provenance, where),
        part=_part(sample.provenance, where),
    )


def check_alike(sample: EncodedSample, first: EncodedSample) -> None:
    """Samples of one writer have the same shapes and parameters, and are of one part.

    Raises
    ------
    ShardError
        Names the item and what differs from the first sample.
    """
    for name in ("amplitude", "potential"):
        found, needed = getattr(sample, name).shape, getattr(first, name).shape
        if found != needed:
            raise ShardError(
                f"item {sample.item}: {name} has the shape {found}; that of item {first.item} has {needed}"
            )
    if sample.part != first.part:
        raise ShardError(f"item {sample.item}: is of the part {sample.part!r}; item {first.item} is of {first.part!r}")
    different = sorted(sample.parameters.keys() ^ first.parameters.keys())
    if different:
        raise ShardError(f"item {sample.item}: parameters differ from those of item {first.item}: {different}")


def _part(provenance: Mapping[str, object], where: str) -> str:
    part = provenance.get("part", "")
    if not isinstance(part, str):
        raise ShardError(f"{where}: provenance says part {part!r}; a name is needed")
    return part


def _checked_array(array: object, axes: str, num_axes: int, stored: str, where: str) -> np.ndarray:
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise ShardError(f"{where}: {axes} must be a numpy array of floats, not {kind}")
    if array.ndim != num_axes or array.size == 0:
        raise ShardError(f"{where}: {axes} needs {num_axes} axes, none of length 0; the shape is {array.shape}")
    num_bytes = array.size * np.dtype(stored).itemsize
    if num_bytes > _CHUNK_LIMIT_BYTES:
        raise ShardError(
            f"{where}: {axes} takes {num_bytes} bytes; HDF5 allows {_CHUNK_LIMIT_BYTES}; use a smaller field"
        )
    return array


def _encode_amplitude(array: object, where: str) -> np.ndarray:
    amplitude = _checked_array(array, "amplitude (scan_y, scan_x, det_y, det_x)", 4, "f2", where)
    limit = 1.0 + INTENSITY_TOLERANCE
    for y, row in enumerate(amplitude):  # one scan row at a time: the float64 copy of a whole large field is too much
        row64 = row.astype(np.float64)
        sums = np.einsum("xab,xab->x", row64, row64)  # (scan_x,), electrons found per electron sent
        if not np.isfinite(sums).all():
            raise ShardError(f"{where}: amplitude holds NaN or infinite values at scan row {y}")
        if row64.min() < 0:
            raise ShardError(f"{where}: amplitude is negative ({row64.min():g}) at scan row {y}; it is √intensity")
        if sums.max() > limit:
            raise ShardError(
                f"{where}: the pattern at scan position (y, x) = ({y}, {int(sums.argmax())}) sums to {sums.max():.6g} "
                f"of the incident beam; at most {limit:g} is allowed (amplitude is the root of a fraction)"
            )
    # Within the tolerance a single bright pixel may round to the float16 above 1, and stored amplitudes never exceed 1.
    # The other end is harmless: what is below 3e-8 becomes 0, an intensity of 1e-15.
    return np.minimum(np.asarray(amplitude, dtype=np.float16), np.float16(1.0))


def _encode_potential(array: object, where: str) -> np.ndarray:
    potential = _checked_array(array, "potential (y, x)", 2, "f4", where)
    with np.errstate(over="ignore"):  # an overflow gives inf, which is refused with a name below
        stored = np.ascontiguousarray(potential, dtype=np.float32)
    if not np.isfinite(stored).all():
        raise ShardError(f"{where}: potential holds NaN, infinite or float32-overflowing values")
    return stored


def _encode_parameters(parameters: Mapping[str, float], where: str) -> dict[str, float]:
    encoded = {}
    for name in sorted(parameters):
        value = parameters[name]
        if not _PARAMETER_NAME.fullmatch(name):
            raise ShardError(f"{where}: parameter name {name!r}; letters, digits and _ are allowed, 64 at most")
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise ShardError(f"{where}: parameter {name} is {value!r}; a number is needed")
        if not math.isfinite(value):
            raise ShardError(f"{where}: parameter {name} is {value}; it must be finite")
        encoded[name] = float(value)
    return encoded


def _encode_provenance(provenance: Mapping[str, object], where: str) -> str:
    for key in ("crystal", "formula"):
        if not isinstance(provenance.get(key), str) or not provenance[key]:
            raise ShardError(f"{where}: provenance needs {key!r}, a name; found {provenance.get(key)!r}")
    try:
        # Sorted keys: the same sample gives the same bytes, so the same shard the same hash. ASCII alone: one byte per
        # character, and no NUL that a fixed-length HDF5 string would lose.
        return json.dumps(provenance, sort_keys=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ShardError(f"{where}: provenance cannot be written as JSON: {error}") from error
