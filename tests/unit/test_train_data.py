"""Which fields are learned from, in which order, turned how, at which learning rate, and what is minimised."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from field_cases import FORMULAS, fields_of, pictures_of, small_config
from stemdl.models.symmetry import apply_to_patterns, apply_to_picture
from stemdl.seeds import Purpose
from stemdl.train.average import WeightAverage
from stemdl.train.data import augmentation, batches, gather, misfit_squared, split_fields
from stemdl.train.loss import RELATIVE_FLOOR, potential_loss
from stemdl.train.randomness import torch_seed
from stemdl.train.schedule import learning_rate

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
        seen = list(batches(self.indices, batch, 14, seed=1, stage=0))
        assert [len(part) for part in seen] == [batch] * 14
        order = np.concatenate(seen)
        epochs = [order[start : start + 7] for start in range(0, len(order) - 6, 7)]
        assert len(epochs) >= 2
        for epoch in epochs:
            assert sorted(epoch) == self.indices.tolist()
        assert not np.array_equal(epochs[0], epochs[1])

    def test_the_order_follows_from_seed_and_stage(self) -> None:
        def order(seed: int, stage: int) -> list[int]:
            np.random.seed(seed + 99)  # global state must not matter
            return [int(i) for part in batches(self.indices, 4, 9, seed, stage) for i in part]

        assert order(1, 0) == order(1, 0)
        assert order(1, 0) != order(2, 0)
        assert order(1, 0) != order(1, 1)

    def test_steps_asked_for_later_do_not_change_earlier_ones(self) -> None:
        few, many = (list(batches(self.indices, 4, steps, 1, 0)) for steps in (3, 30))
        assert all(np.array_equal(a, b) for a, b in zip(few, many, strict=False))


class TestHardFields:
    indices = np.array([2, 3, 5, 7, 11, 13, 17, 19])

    def drawn(self, hardness: list[float], share: float, **changes: int) -> list[list[int]]:
        keys = {"batch": 8, "steps": 200, "seed": 1, "stage": 0, **changes}
        order = batches(self.indices, **keys, hardness=np.array(hardness), hard_share=share)
        return [[int(i) for i in part] for part in order]

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
        plain = [[int(i) for i in part] for part in batches(self.indices, 8, 200, 1, 0)]
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
        assert truth.shape == (1, 8, 8)


class TestSchedule:
    def test_it_warms_up_in_a_line_and_falls_to_zero_along_a_cosine(self) -> None:
        rates = np.array([learning_rate(step, 1000, 2.0, 50) for step in range(1000)])
        assert rates[0] == pytest.approx(2.0 / 50)
        assert np.allclose(np.diff(rates[:50], 2), 0, atol=1e-4)
        assert rates.argmax() == 49
        assert rates.max() == pytest.approx(2.0, rel=0.01)
        assert np.all(np.diff(rates[50:]) < 0)
        assert rates[500] == pytest.approx(1.0, rel=0.01)
        assert 0 < rates[-1] < 1e-4
        assert learning_rate(1000, 1000, 2.0, 50) == pytest.approx(0, abs=1e-12)

    def test_without_warm_up_it_starts_at_the_highest(self) -> None:
        assert learning_rate(0, 10, 0.3, 0) == 0.3

    def test_a_warm_up_longer_than_the_training_never_arrives(self) -> None:
        assert max(learning_rate(step, 10, 1.0, 1000) for step in range(10)) < 0.01


class TestLoss:
    """Error of contrast, weighted error of the mean, weighted smooth L1 on the root."""

    @staticmethod
    def truth() -> torch.Tensor:
        return 50 + 400 * torch.rand(3, 6, 6, generator=torch.Generator().manual_seed(1))

    @staticmethod
    def loss(
        root: torch.Tensor, truth: torch.Tensor, scale: float = 200.0, *, mean: float = 0.5, absolute: float = 0.3
    ) -> float:
        return float(
            potential_loss(root, truth, torch.tensor(scale), mean_weight=mean, root_weight=absolute, huber_beta=0.3)
        )

    def test_it_is_smallest_at_the_truth(self) -> None:
        truth = self.truth()
        root = (truth / 200).sqrt()
        least = self.loss(root, truth)
        assert least == pytest.approx(1.5 * RELATIVE_FLOOR**0.5, rel=1e-3)
        for shift in (-0.1, 0.1):
            assert self.loss(root + shift, truth) > least + 1e-3

    def test_errors_of_contrast_and_of_the_mean_are_told_apart(self) -> None:
        """Both in units of the field's own deviation."""
        truth = self.truth()
        deviation = truth.std(dim=(1, 2), correction=0, keepdim=True)
        mean = truth.mean(dim=(1, 2), keepdim=True)
        cases = {
            "contrast": (mean.expand_as(truth), 1.0, 0.0),
            "half of it": ((truth + mean) / 2, 0.5, 0.0),
            "mean": (truth + 0.3 * deviation, 0.0, 0.3),
        }
        for name, (answer, contrast, level) in cases.items():
            root = (answer / 200).sqrt()
            of_contrast = self.loss(root, truth, mean=0.0, absolute=0.0)
            of_mean = self.loss(root, truth, mean=1.0, absolute=0.0) - of_contrast
            assert of_contrast == pytest.approx(max(contrast, RELATIVE_FLOOR**0.5), rel=2e-3), name
            assert of_mean == pytest.approx(max(level, RELATIVE_FLOOR**0.5), rel=2e-3), name

    def test_the_unit_of_the_potential_does_not_matter(self) -> None:
        truth, root = self.truth(), torch.rand(3, 6, 6, generator=torch.Generator().manual_seed(2))
        assert self.loss(root, 7 * truth, 7 * 200.0) == pytest.approx(self.loss(root, truth), rel=1e-5)

    def test_the_order_of_fields_and_their_turning_do_not_matter(self) -> None:
        truth, root = self.truth(), torch.rand(3, 6, 6, generator=torch.Generator().manual_seed(3))
        expected = self.loss(root, truth)
        assert self.loss(root[[2, 0, 1]], truth[[2, 0, 1]]) == pytest.approx(expected, rel=1e-5)
        for operation in range(8):
            turned = [apply_to_picture(picture, operation) for picture in (root, truth)]
            assert self.loss(turned[0], turned[1]) == pytest.approx(expected, rel=1e-5)

    def test_light_and_heavy_materials_count_the_same(self) -> None:
        """The same relative error on a light and on a heavy field, but for the term that follows absolute values."""
        truth = self.truth()[:1].repeat(2, 1, 1) * torch.tensor([1.0, 30.0])[:, None, None]
        errors = []
        for field in (0, 1):
            wrong = truth.clone()
            wrong[field] *= 1.2
            errors.append(self.loss((wrong / 200).sqrt(), truth, absolute=0.0))
        assert errors[0] == pytest.approx(errors[1], rel=1e-3)

    def test_the_root_term_is_linear_far_off_and_square_near_by(self) -> None:
        truth = torch.full((1, 4, 4), 200.0)

        def root_term(distance: float) -> float:
            root = torch.full((1, 4, 4), 1 + distance)
            return self.loss(root, truth, mean=0.0, absolute=1.0) - self.loss(root, truth, mean=0.0, absolute=0.0)

        assert root_term(0.2) == pytest.approx(4 * root_term(0.1), rel=0.02)
        assert root_term(20.0) == pytest.approx(2 * root_term(10.0), rel=0.05)

    def test_a_flat_truth_and_a_perfect_answer_have_a_gradient_without_holes(self) -> None:
        truth = torch.full((1, 4, 4), 200.0)
        for start in (1.0, 0.0):
            root = torch.full((1, 4, 4), start, requires_grad=True)
            loss = potential_loss(root, truth, torch.tensor(200.0), mean_weight=0.5, root_weight=0.3, huber_beta=0.3)
            torch.autograd.backward(loss)
            assert root.grad is not None
            assert bool(root.grad.isfinite().all())


class TestWeightAverage:
    @staticmethod
    def module(value: float) -> nn.Linear:
        module = nn.Linear(2, 2)
        TestWeightAverage.set(module, value)
        return module

    @staticmethod
    def set(module: nn.Linear, value: float) -> None:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(value)

    @staticmethod
    def averaged(average: WeightAverage, module: nn.Linear) -> float:
        with average.applied():
            return float(module.weight.detach()[0, 0])

    def test_it_is_the_recursion_with_a_quick_start(self) -> None:
        module = self.module(1.0)
        average = WeightAverage(module, 0.9)
        expected = 1.0
        for update in range(200):
            self.set(module, float(update % 7))
            average.update()
            decay = min(0.9, (1 + update) / (10 + update))
            expected = decay * expected + (1 - decay) * (update % 7)
            assert self.averaged(average, module) == pytest.approx(expected, rel=1e-4)

    def test_the_start_is_soon_forgotten(self) -> None:
        module = self.module(1000.0)
        average = WeightAverage(module, 0.999)
        self.set(module, 1.0)
        for _ in range(50):
            average.update()
        assert self.averaged(average, module) < 1.1

    def test_inside_the_block_averaged_and_behind_it_its_own(self) -> None:
        module = self.module(0.0)
        average = WeightAverage(module, 0.5)
        self.set(module, 1.0)
        average.update()
        with pytest.raises(KeyError), average.applied():
            assert float(module.bias.detach()[0]) == pytest.approx(0.9)
            raise KeyError
        assert float(module.bias.detach()[0]) == 1.0
        average.copy_to_module()
        assert float(module.bias.detach()[0]) == pytest.approx(0.9)

    def test_without_decay_it_is_the_last_weights(self) -> None:
        module = self.module(0.0)
        average = WeightAverage(module, 0.0)
        self.set(module, 3.0)
        average.update()
        assert self.averaged(average, module) == 3.0


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
