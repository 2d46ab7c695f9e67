"""One sample: physics of its content, whole provenance, and fields that would be empty."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from data_gen.engines.torch_engine import TorchEngine
from data_gen.imaging import image, setup_for
from data_gen.materials import BadCrystal
from data_gen.potential import projected_target
from data_gen.sample import MOST_DRAWS, axes_of, draw_specimen, make_sample, remake_sample
from data_gen.specimen import cut_specimen, displaced, remake
from data_gen.worklist import Part, draw_thickness, parts
from stemdl.config import Config
from stemdl.physics.constants import SCATTERING_FACTOR_TO_V_A2
from stemdl.shards import Sample, ShardSet, ShardWriter
from tests.small_run import small_config, write_cif


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the workers: the last bits follow from it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def stored(config: Config, sample: Sample, folder: Path) -> Sample:
    """The sample as it comes back from a shard."""
    with ShardWriter(folder, rank=0, axes=axes_of(config), config_hash="h", samples_per_shard=1) as writer:
        writer.add(sample)
    with ShardSet(folder) as shards:
        return shards.item(0)


def same(one: Sample, other: Sample) -> bool:
    return (
        np.array_equal(one.amplitude, other.amplitude)
        and np.array_equal(one.potential, other.potential)
        and one.parameters == other.parameters
        and one.provenance == other.provenance
    )


def slabs(folder: Path, height_angstrom: float) -> Config:
    """Copper beside one layer of aluminium in each cell of the given height, seen along the plane of the layers."""
    write_cif(folder / "cif", "cu", [3.61] * 3, [("Cu", 0.0, 0.0, 0.0)])
    write_cif(folder / "cif", "slab", [3.0, 3.0, height_angstrom], [("Al", 0.0, 0.0, 0.0)])
    return small_config(folder, "specimen.zone_axes=[[0, 0, 1]]", "specimen.tilt_mrad=0.0")


def part_of(config: Config, crystal: str) -> Part:
    (part, _), _ = parts(config)
    every = [one for side in parts(config)[0] for one in side.crystals]
    return dataclasses.replace(part, crystals=tuple(one for one in every if one.name == crystal))


def test_a_sample_depends_on_configuration_part_and_item_alone(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    (train, held_out), _ = parts(config)
    engine = TorchEngine()
    first = make_sample(config, train, 4, engine)
    make_sample(config, held_out, 1, engine)
    assert same(first, make_sample(config, train, 4, TorchEngine()))
    assert not np.array_equal(first.potential, make_sample(config, train, 7, engine).potential)
    again = make_sample(small_config(tmp_path, "run.seed=8"), train, 4, engine)
    assert not np.array_equal(first.potential, again.potential)
    apart = dataclasses.replace(held_out, crystals=train.crystals, sampling=train.sampling)
    assert not np.array_equal(first.potential, make_sample(config, apart, 4, engine).potential), "seeds of the part"


def test_shapes_units_and_parameters(tmp_path: Path) -> None:
    config = small_config(tmp_path, "microscope.defocus_angstrom=40.0")
    (train, _), _ = parts(config)
    sample = make_sample(config, train, 2, TorchEngine())
    assert sample.amplitude.shape == (3, 3, 20, 20)
    assert sample.amplitude.dtype == np.float16
    assert sample.potential.shape == (12, 12)
    assert sample.potential.dtype == np.float32
    electrons = (sample.amplitude.astype(np.float64) ** 2).sum(axis=(2, 3))
    assert electrons.max() <= 1.001
    assert electrons.min() > 0.5, "the detector holds the bright disc"
    assert sample.parameters["thickness_angstrom"] == draw_thickness(config, train, 2)
    assert sample.parameters["thickness_angstrom"] % 2.0 == 0.0
    assert sample.parameters["defocus_angstrom"] == 40.0
    assert sample.provenance["crystal"] == train.crystal_of(2).name
    assert sample.provenance["formula"] == train.crystal_of(2).formula
    axes = axes_of(config)
    assert (axes.scan_step_angstrom, axes.dk_per_angstrom, axes.potential_pixel_angstrom) == (2.0, 1 / 12.0, 0.5)


def test_the_mean_potential_is_that_of_the_atoms(tmp_path: Path) -> None:
    """Mean of the projected potential = f_e(0) times density times thickness, over many fields of aluminium."""
    config = small_config(tmp_path, "crystals.include=['cif:al', 'cif:cu']", "specimen.thickness_angstrom=[8.0, 8.0]")
    part = part_of(config, "cif:al")
    engine = TorchEngine()
    means = [float(make_sample(config, part, item, engine).potential.mean()) for item in range(24)]
    forward_angstrom = 5.889  # f_e(0) of Al by Doyle and Turner
    expected = SCATTERING_FACTOR_TO_V_A2 * forward_angstrom * 4 / 4.05**3 * 8.0
    assert np.mean(means) == pytest.approx(expected, rel=0.06)


def test_provenance_makes_the_sample_again_bit_for_bit(tmp_path: Path) -> None:
    config = small_config(tmp_path, "held_out.frozen_phonons=2", "specimen.tilt_mrad=20.0")
    engine = TorchEngine()
    for part, item in ((parts(config)[0][0], 5), (parts(config)[0][1], 3)):
        crystal = part.crystal_of(item)
        kept = stored(config, make_sample(config, part, item, engine), tmp_path / part.name)
        assert same(remake_sample(config, crystal, kept, TorchEngine()), kept)
        other = next(one for one in part.crystals if one.name != crystal.name)
        with pytest.raises(BadCrystal, match="its structure differs from that of the record"):
            remake_sample(config, other, kept, engine)


def test_the_recorded_seeds_alone_give_patterns_and_potential(tmp_path: Path) -> None:
    """By hand, from what the record says, without the code that made the sample."""
    config = small_config(tmp_path, "held_out.frozen_phonons=2")
    (_, held_out), _ = parts(config)
    sample = make_sample(config, held_out, 1, TorchEngine())
    record = sample.provenance
    assert isinstance(record["specimen"], dict)
    crystal = next(one for one in held_out.crystals if one.name == record["crystal"])
    at_rest = remake(crystal, record["specimen"])
    cut = cut_specimen(
        crystal,
        at_rest.box_angstrom,
        zone_axes=config.specimen.zone_axes,
        tilt_mrad=config.specimen.tilt_mrad,
        displacement_sigma_angstrom=0.0,
        rng_seed=record["specimen"]["seed"],
    )
    assert np.array_equal(cut.positions_angstrom, at_rest.positions_angstrom)
    seeds = record["phonon_seeds"]
    assert isinstance(seeds, list)
    assert len({tuple(seed) for seed in seeds}) == 2
    patterns = image(TorchEngine(), at_rest, setup_for(config, config.held_out), config, config.held_out, seeds)
    assert np.array_equal(np.sqrt(patterns).astype(np.float16), sample.amplitude)
    potentials = [
        projected_target(
            displaced(at_rest, config.specimen.displacement_sigma_angstrom, seed),
            field_angstrom=(6.0, 6.0),
            pixel_angstrom=0.5,
            blur_sigma_angstrom=0.35,
            parametrization="kirkland",
        ).numpy()
        for seed in seeds
    ]
    assert np.allclose(np.mean(potentials, axis=0), sample.potential, rtol=1e-6)
    assert not np.allclose(potentials[0], sample.potential, rtol=1e-2), "the mean of both, not the first"


def test_boxes_and_fields_without_an_atom_are_drawn_again(tmp_path: Path) -> None:
    """Layers 30 Å apart: a field of 6 Å, at any height of up to 8 Å, mostly lies in the vacuum between."""
    config = slabs(tmp_path, 30.0)
    part = part_of(config, "cif:slab")
    seen, all_draws = set(), []
    for item in range(30):
        specimen, draws = draw_specimen(config, part, item)
        inside = np.abs(specimen.positions_angstrom[:, :2] - 6.0).max(axis=1) <= 3.0
        assert inside.any()
        all_draws.append(draws)
        seen.add(len(specimen.provenance["seed"]))  # type: ignore[arg-type]
        assert draw_specimen(config, part, item)[1] == draws
    assert seen == {3, 4}, "the first draw has the item's seed, every later one a child of it"
    assert 1.5 < np.mean(all_draws) < 12, "a thickness of 4 to 8 of 30 Å: one draw of about 5 hits"
    sample = make_sample(config, part, int(np.argmax(all_draws)), TorchEngine())
    assert sample.provenance["draws"] == max(all_draws)
    assert same(remake_sample(config, part.crystals[0], sample, TorchEngine()), sample)
    assert float(np.ptp(sample.potential)) > 1.0


def test_an_item_that_no_draw_fills_is_given_up_with_the_reason(tmp_path: Path) -> None:
    config = slabs(tmp_path, 30000.0)
    part = part_of(config, "cif:slab")
    with pytest.raises(BadCrystal, match=rf"cif:slab: no atom lies in the box .*in none of {MOST_DRAWS} draws"):
        make_sample(config, part, 0, TorchEngine())
