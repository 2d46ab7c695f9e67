"""Which fields are learned from, in which order, in which epoch, and turned how."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from field_cases import FORMULAS, fields_of, pictures_of, small_config
from stemdl.models.symmetry import apply_to_patterns, apply_to_picture
from stemdl.physics.detector_effects import DetectorEffects, read_out
from stemdl.seeds import Purpose
from stemdl.shards.detector import detector_model
from stemdl.train.data import augmentation, batches, gather, misfit_squared, split_fields
from stemdl.train.randomness import torch_seed

MANY = tuple(f"M{i % 20}" for i in range(100))


def test_purposes_of_random_numbers_never_meet() -> None:
    assert len({int(purpose) for purpose in Purpose}) == len(Purpose.__members__)
    assert (Purpose.TRAIN_DOSE, Purpose.VALIDATION_SPLIT, Purpose.AUGMENTATION) == (8, 10, 13)  # part of the format


class TestSplit:
    @pytest.mark.parametrize("fraction", [0.001, 0.06, 0.25, 0.49])
    @pytest.mark.parametrize("seed", [0, 1])
    def test_a_material_is_on_one_side_alone(self, fraction: float, seed: int) -> None:
        split = split_fields(MANY, fraction, seed)
        sides = [{MANY[i] for i in indices} for indices in (split.train, split.validation)]
        assert not sides[0] & sides[1]
        assert sides[0] | sides[1] == set(MANY)
        assert len(sides[1]) == max(1, round(20 * fraction))
        assert sorted([*split.train, *split.validation]) == list(range(100))

    def test_it_follows_from_the_seed_and_the_names(self) -> None:
        split, again = split_fields(MANY, 0.25, 1), split_fields(MANY, 0.25, 1)
        assert np.array_equal(split.validation, again.validation)
        assert not np.array_equal(split.validation, split_fields(MANY, 0.25, 2).validation)
        # The same materials in another order of fields: the same materials are kept aside.
        shuffled = split_fields(MANY[::-1], 0.25, 1)
        assert {MANY[::-1][i] for i in shuffled.validation} == {MANY[i] for i in split.validation}

    def test_two_materials_are_one_for_each_side(self) -> None:
        split = split_fields(("Al", "Fe", "Al"), 0.01, 0)
        assert sorted([len(split.train), len(split.validation)]) == [1, 2]
        split = split_fields(("Al", "Fe", "Al"), 0.49, 0)
        assert sorted([len(split.train), len(split.validation)]) == [1, 2]

    def test_one_material_serves_as_both(self) -> None:
        split = split_fields(("Al",) * 3, 0.1, 0)
        assert split.train.tolist() == split.validation.tolist() == [0, 1, 2]


class TestBatches:
    indices = np.array([2, 3, 5, 7, 11, 13, 17])

    @pytest.mark.parametrize("batch", [1, 2, 3, 7, 10])
    def test_every_field_once_an_epoch(self, batch: int) -> None:
        seen = [part.indices for part in batches(self.indices, batch, 14, seed=1, stage=0)]
        assert [len(part) for part in seen] == [batch] * 14
        order = np.concatenate(seen)
        epochs = [order[start : start + 7] for start in range(0, len(order) - 6, 7)]
        assert len(epochs) >= 2
        for epoch in epochs:
            assert sorted(epoch) == self.indices.tolist()
        assert not np.array_equal(epochs[0], epochs[1])

    @pytest.mark.parametrize("batch", [1, 3, 7, 10, 16])
    def test_each_index_knows_its_epoch(self, batch: int) -> None:
        """Also where a batch joins the end of one epoch and the start of the next, or more."""
        parts = list(batches(self.indices, batch, 14, seed=1, stage=0))
        assert all(part.epochs.shape == part.indices.shape for part in parts)
        seen = list(
            zip(np.concatenate([p.epochs for p in parts]), np.concatenate([p.indices for p in parts]), strict=True)
        )
        assert len(set(seen)) == len(seen) == 14 * batch  # no field twice in an epoch
        epochs = [int(epoch) for epoch, _ in seen]
        assert epochs == sorted(epochs)
        assert all(epochs.count(epoch) == 7 for epoch in range(epochs[-1]))

    def test_the_order_follows_from_seed_and_stage(self) -> None:
        def order(seed: int, stage: int) -> list[int]:
            np.random.seed(seed + 99)  # global state must not matter
            return [int(i) for part in batches(self.indices, 4, 9, seed, stage) for i in part.indices]

        assert order(1, 0) == order(1, 0)
        assert order(1, 0) != order(2, 0)
        assert order(1, 0) != order(1, 1)

    def test_steps_asked_for_later_do_not_change_earlier_ones(self) -> None:
        few, many = (list(batches(self.indices, 4, steps, 1, 0)) for steps in (3, 30))
        assert all(np.array_equal(a, b) for a, b in zip(few, many[:3], strict=True))


class TestHardFields:
    indices = np.array([2, 3, 5, 7, 11, 13, 17, 19])

    def drawn(self, hardness: list[float], share: float, **changes: int) -> list[list[int]]:
        keys = {"batch": 8, "steps": 200, "seed": 1, "stage": 0, **changes}
        order = batches(self.indices, **keys, hardness=np.array(hardness), hard_share=share)
        return [[int(i) for i in part.indices] for part in order]

    def test_a_share_of_each_batch_goes_by_hardness_and_the_rest_takes_all_in_turn(self) -> None:
        seen = self.drawn([0, 0, 0, 0, 0, 0, 1, 3], 0.5)
        in_turn = [i for part in seen for i in part[:4]]
        for start in range(0, len(in_turn), 8):
            assert sorted(in_turn[start : start + 8]) == self.indices.tolist()
        hard = Counter(i for part in seen for i in part[4:])
        assert set(hard) == {17, 19}
        assert hard[19] / hard[17] == pytest.approx(3, rel=0.3)
        assert all(len(part) == 8 for part in seen)

    def test_without_a_share_or_without_any_hardness_all_come_in_turn(self) -> None:
        plain = [[int(i) for i in part.indices] for part in batches(self.indices, 8, 200, 1, 0)]
        assert self.drawn([1, 2, 3, 4, 5, 6, 7, 8], 0.0) == plain
        assert self.drawn([0.0] * 8, 0.5) == plain

    def test_they_follow_from_seed_and_stage_and_come_afresh_in_every_step(self) -> None:
        equal = [1.0] * 8
        assert self.drawn(equal, 0.5) == self.drawn(equal, 0.5)
        hard, of_seed, of_stage = (
            [part[4:] for part in self.drawn(equal, 0.5, **keys)] for keys in ({}, {"seed": 2}, {"stage": 1})
        )
        assert hard != of_seed
        assert hard != of_stage
        assert len({tuple(part[4:]) for part in self.drawn(equal, 0.5)}) > 150
        assert self.drawn(equal, 0.5, steps=3) == self.drawn(equal, 0.5)[:3]

    def test_hard_is_what_physics_leaves_unexplained(self) -> None:
        pictures = torch.rand(3, 5, 4, 4, generator=torch.Generator().manual_seed(1))
        pictures[:, -1] = torch.tensor([1.0, 2.0, 0.5])[:, None, None]
        assert np.allclose(misfit_squared(pictures), [1.0, 4.0, 0.25])

    def test_noise_is_not_hard(self) -> None:
        pictures = torch.zeros(3, 5, 4, 4)
        pictures[:, -1] = torch.tensor([1.0, 2.0, 0.5])[:, None, None]
        assert np.allclose(misfit_squared(pictures, np.array([0.0, 1.5, 0.6])), [1.0, 0.25, 0.0])

    def test_of_equal_specimens_the_one_of_the_lower_dose_is_not_the_harder(self) -> None:
        config = small_config()
        fields = fields_of(config, 1)
        amplitude = fields.amplitude[0]
        hardness, plain = [], []
        for electrons in (1e6, 3e4):
            read = read_out(amplitude, DetectorEffects(), electrons, noise_seed=(1,), bad_pixel_seed=(2,))
            twin = dataclasses.replace(fields, amplitude=read[None])
            change = read.astype(np.float64) - amplitude
            noise = np.array([(change**2).sum() / 16])
            pictures = pictures_of(config, twin)
            hardness.append(float(misfit_squared(pictures, noise)[0]))
            plain.append(float(misfit_squared(pictures)[0]))
        assert plain[1] > 1.5 * plain[0]
        assert hardness[1] < 1.1 * hardness[0]

    def test_they_count_to_the_latest_epoch_of_their_batch(self) -> None:
        for part in batches(self.indices, 6, 40, 1, 0, hardness=np.ones(8), hard_share=0.5):
            assert part.epochs.shape == (6,)
            assert part.epochs[3:].tolist() == [int(part.epochs[:3].max())] * 3


class TestAugmentation:
    def test_all_operations_come_equally_often(self) -> None:
        counts = Counter(augmentation(range(8), 1, 0, step) for step in range(1600))
        assert set(counts) == set(range(8))
        assert max(counts.values()) < 1.3 * min(counts.values())

    def test_it_follows_from_seed_stage_and_step(self) -> None:
        def draws(seed: int, stage: int) -> list[int]:
            return [augmentation(range(8), seed, stage, step) for step in range(40)]

        assert draws(1, 0) == draws(1, 0)
        assert draws(1, 0) != draws(2, 0)
        assert draws(1, 0) != draws(1, 1)
        assert {augmentation((0, 6), 1, 0, step) for step in range(20)} == {0, 6}

    @pytest.mark.parametrize("operation", range(8))
    def test_patterns_channels_and_truth_turn_together(self, operation: int) -> None:
        fields = fields_of(small_config(), 4)
        pictures = pictures_of(small_config(), fields)
        indices = np.array([3, 1])
        inputs, truth = gather(fields, pictures, indices, operation)
        assert inputs.channels is not None
        assert inputs.amplitude.dtype == inputs.channels.dtype == truth.dtype == torch.float32
        for row, index in enumerate(indices):
            amplitude = torch.from_numpy(fields.amplitude[index].astype(np.float32))
            assert torch.equal(inputs.amplitude[row], apply_to_patterns(amplitude, operation))
            assert torch.equal(inputs.channels[row], apply_to_picture(pictures[index], operation))
            assert torch.equal(truth[row], apply_to_picture(torch.from_numpy(fields.potential[index]), operation))

    def test_without_physics_there_are_no_channels(self) -> None:
        inputs, truth = gather(fields_of(small_config(), 2), None, np.array([0]), 0)
        assert inputs.channels is None
        assert inputs.scan_step_angstrom is None
        assert truth.shape == (1, 8, 8)

    def test_scan_steps_go_with_their_fields(self) -> None:
        fields = fields_of(small_config(), 3, scan_step_angstrom=[2.0, 1.9, 2.1])
        inputs, _ = gather(fields, None, np.array([2, 0]), 3)
        assert inputs.scan_step_angstrom is not None
        assert inputs.scan_step_angstrom.tolist() == pytest.approx([2.1, 2.0])

    def test_each_field_is_read_in_its_epoch_before_it_is_turned(self) -> None:
        detector = detector_model(small_config(detector__dose_e_per_a2=1e3), "train")
        assert detector is not None
        fields = dataclasses.replace(fields_of(small_config(), 3), detector=detector)
        indices, epochs = np.array([2, 0]), np.array([0, 5])
        for operation in (0, 5):
            inputs, _ = gather(fields, None, indices, operation, epochs)
            for row in range(2):
                index, epoch = int(indices[row]), int(epochs[row])
                read = detector.record(fields.amplitude[index], index, epoch, {})
                expected = apply_to_patterns(torch.from_numpy(read.astype(np.float32)), operation)
                assert torch.equal(inputs.amplitude[row], expected)
        first, _ = gather(fields, None, indices, 0)
        assert torch.equal(first.amplitude[0], gather(fields, None, indices, 0, epochs)[0].amplitude[0])


def test_torch_draws_from_the_key_inside_and_goes_on_as_before_behind() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    draws = {}
    for key in itertools.product((1, 2), (11, 14)):
        with torch_seed(*key):
            draws[key] = float(torch.rand(()))
    with torch_seed(1, 11):
        assert float(torch.rand(())) == draws[1, 11]
    assert len(set(draws.values())) == 4
    assert torch.equal(torch.rand(4), expected)


def test_formulas_of_the_cases_are_several() -> None:
    assert len(set(fields_of(small_config(), 4).formulas)) == len(FORMULAS)
