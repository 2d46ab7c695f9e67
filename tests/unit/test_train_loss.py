"""At which learning rate fields are learned from, what is minimised, and which weights are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from stemdl.config.network import Train
from stemdl.models.symmetry import apply_to_picture
from stemdl.train.average import WeightAverage
from stemdl.train.loss import RELATIVE_FLOOR, potential_loss
from stemdl.train.schedule import learning_rate


def section(steps: int, lr: float, warmup_steps: int, **others: Any) -> Train:
    return Train(steps=steps, lr=lr, warmup_steps=warmup_steps, **others)


class TestSchedule:
    def test_it_warms_up_in_a_line_and_falls_to_zero_along_a_cosine(self) -> None:
        rates = np.array([learning_rate(step, section(1000, 2.0, 50)) for step in range(1000)])
        assert rates[0] == pytest.approx(2.0 / 50)
        assert np.allclose(np.diff(rates[:50], 2), 0, atol=1e-4)
        assert rates.argmax() == 49
        assert rates.max() == pytest.approx(2.0, rel=0.01)
        assert np.all(np.diff(rates[50:]) < 0)
        assert rates[500] == pytest.approx(1.0, rel=0.01)
        assert 0 < rates[-1] < 1e-4
        assert learning_rate(1000, section(1000, 2.0, 50)) == pytest.approx(0, abs=1e-12)

    def test_without_warm_up_it_starts_at_the_highest(self) -> None:
        assert learning_rate(0, section(10, 0.3, 0)) == 0.3

    def test_a_warm_up_longer_than_the_training_never_arrives(self) -> None:
        assert max(learning_rate(step, section(10, 1.0, 1000)) for step in range(10)) < 0.01

    def test_a_staircase_keeps_a_rate_for_the_steps_of_a_stair(self) -> None:
        stairs = section(100, 0.8, 0, schedule="staircase", decay_every_steps=10, decay_factor=0.5)
        assert [learning_rate(step, stairs) for step in (0, 9, 10, 19, 20, 35)] == [0.8, 0.8, 0.4, 0.4, 0.2, 0.1]

    def test_constant_is_constant_after_the_warm_up(self) -> None:
        assert {learning_rate(step, section(50, 0.5, 10, schedule="constant")) for step in range(9, 50)} == {0.5}

    @pytest.mark.parametrize(("scaling", "expected"), [("none", 0.1), ("linear", 0.8), ("sqrt", 0.1 * 8**0.5)])
    def test_the_rate_grows_with_the_batch_as_asked(self, scaling: str, expected: float) -> None:
        large = section(10, 0.1, 0, batch=128, lr_batch=16, lr_scaling=scaling)
        assert learning_rate(0, large) == pytest.approx(expected)


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
