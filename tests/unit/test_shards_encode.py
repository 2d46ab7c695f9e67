"""What a sample must be before it is stored."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from stemdl.shards import Sample, ShardAxes, ShardError
from stemdl.shards.encode import check_alike, encode_sample
from stemdl.shards.schema import parse_shard_name, shard_name


def _sample(**changes: Any) -> Sample:
    amplitude = np.full((2, 3, 4, 4), 0.25)  # each pattern sums to exactly 1
    plain = Sample(
        item=7,
        amplitude=amplitude,
        potential=np.full((8, 8), 12.5),
        parameters={"energy_kev": 100.0},
        provenance={"crystal": "Si", "formula": "Si"},
    )
    return dataclasses.replace(plain, **changes)


def _changed(array: np.ndarray, index: tuple[int, ...], value: float) -> np.ndarray:
    array = array.copy()
    array[index] = value
    return array


def test_types_are_the_stored_ones() -> None:
    encoded = encode_sample(_sample())
    assert encoded.amplitude.dtype == np.float16
    assert encoded.potential.dtype == np.float32
    np.testing.assert_array_equal(encoded.amplitude, 0.25)
    assert json.loads(encoded.provenance) == {"crystal": "Si", "formula": "Si"}


AMPLITUDE = _sample().amplitude
POTENTIAL = _sample().potential


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"amplitude": _changed(AMPLITUDE, (1, 2, 0, 0), np.nan)},
            "amplitude holds NaN or infinite values at scan row 1",
        ),
        ({"amplitude": _changed(AMPLITUDE, (0, 0, 0, 0), np.inf)}, "amplitude holds NaN or infinite"),
        ({"amplitude": _changed(AMPLITUDE, (0, 0, 0, 0), -1e-3)}, "amplitude is negative"),
        ({"amplitude": _changed(AMPLITUDE, (1, 2, 0, 0), 0.2548)}, r"\(y, x\) = \(1, 2\) sums to 1\.00\d+ "),
        ({"amplitude": AMPLITUDE[0]}, "4 axes"),
        ({"amplitude": AMPLITUDE[:0]}, "none of length 0"),
        ({"amplitude": AMPLITUDE.astype(complex)}, "floats, not complex128"),
        ({"amplitude": AMPLITUDE.tolist()}, "floats, not list"),
        ({"amplitude": np.broadcast_to(np.float64(0), (1024, 1024, 64, 64))}, "use a smaller field"),
        ({"potential": _changed(POTENTIAL, (3, 3), np.nan)}, "potential holds NaN"),
        ({"potential": _changed(POTENTIAL, (3, 3), 1e300)}, "float32-overflowing"),
        ({"potential": POTENTIAL[0]}, "2 axes"),
        ({"parameters": {"energy_kev": np.nan}}, "energy_kev is nan"),
        ({"parameters": {"energy_kev": "100"}}, "energy_kev is '100'"),
        ({"parameters": {"energy_kev": True}}, "energy_kev is True"),
        ({"parameters": {"../energy": 1.0}}, "parameter name '../energy'"),
        ({"provenance": {"crystal": "Si"}}, "'formula'"),
        ({"provenance": {"crystal": "", "formula": "Si"}}, "'crystal'"),
        ({"provenance": {"crystal": "Si", "formula": "Si", "cell": np.eye(3)}}, "JSON"),
        ({"provenance": {"crystal": "Si", "formula": "Si", "tilt": float("nan")}}, "JSON"),
    ],
)
def test_bad_samples_are_refused_by_item_and_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ShardError, match=f"item 7: .*{reason}"):
        encode_sample(_sample(**changes))


@pytest.mark.parametrize("item", [-1, True, 1.0, "1"])
def test_the_item_is_a_count(item: Any) -> None:
    with pytest.raises(ShardError, match="integer"):
        encode_sample(_sample(item=item))


def test_all_electrons_in_one_pixel_stay_at_most_one() -> None:
    amplitude = np.zeros((1, 1, 4, 4))
    amplitude[0, 0, 1, 1] = np.sqrt(1.00099)  # allowed, and nearer to the float16 above 1 than to 1
    assert encode_sample(_sample(amplitude=amplitude)).amplitude.max() == 1.0


def test_rounding_to_float16_never_trips_the_check_again() -> None:
    """A stored sample may be read and written once more (merging shards), whatever its patterns rounded to."""
    rng = np.random.default_rng(0)
    amplitude = rng.random((4, 4, 8, 8))
    amplitude /= np.sqrt((amplitude**2).sum(axis=(2, 3), keepdims=True))
    once = encode_sample(_sample(amplitude=amplitude))
    twice = encode_sample(_sample(amplitude=once.amplitude))
    np.testing.assert_array_equal(once.amplitude, twice.amplitude)


def test_weak_intensities_vanish_only_far_below_one_electron() -> None:
    amplitude = np.full((1, 1, 4, 4), 1e-7)  # an intensity of 1e-14
    assert (encode_sample(_sample(amplitude=amplitude)).amplitude > 0).all()


def test_provenance_text_does_not_depend_on_the_order_of_keys() -> None:
    one = encode_sample(_sample(provenance={"crystal": "Si", "formula": "Si", "seed": [1, 2]}))
    other = encode_sample(_sample(provenance={"seed": (1, 2), "formula": "Si", "crystal": "Si"}))
    assert one.provenance == other.provenance


def test_samples_of_a_writer_are_alike() -> None:
    first = encode_sample(_sample())
    check_alike(encode_sample(_sample(item=8)), first)
    with pytest.raises(ShardError, match=r"item 8: amplitude has the shape \(2, 2, 4, 4\)"):
        check_alike(encode_sample(_sample(item=8, amplitude=AMPLITUDE[:, :2])), first)
    with pytest.raises(ShardError, match="item 8: potential has the shape"):
        check_alike(encode_sample(_sample(item=8, potential=POTENTIAL[1:])), first)
    with pytest.raises(ShardError, match=r"item 8: parameters differ .*\['defocus_angstrom'\]"):
        check_alike(encode_sample(_sample(item=8, parameters={"energy_kev": 1.0, "defocus_angstrom": 1.0})), first)


@pytest.mark.parametrize("step", [0.0, -1.0, float("nan"), float("inf"), True, "2"])
def test_axes_are_finite_and_above_zero(step: Any) -> None:
    with pytest.raises(ShardError, match="dk_per_angstrom"):
        ShardAxes(2.0, step, 0.5)


def test_shard_names() -> None:
    assert shard_name(3, 12) == "shard-00003-00012.h5"
    assert parse_shard_name(shard_name(27_599, 123_456)) == (27_599, 123_456)
    for name in ("shard-1-1.h5", "../shard-00000-00000.h5", "shard-00000-00000.h5.tmp", "shard-000001-00000.h5", ""):
        assert parse_shard_name(name) is None
