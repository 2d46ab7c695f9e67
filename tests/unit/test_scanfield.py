"""The network `scanfield`: it starts from the physics, moves with the scan, and fits scans of any size."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from field_cases import correlation, fields_of, pictures_of, small_config
from physics_cases import relative
from stemdl.config import Config
from stemdl.models.base import FieldInputs, PotentialNetwork
from stemdl.models.errors import NetworkConfigError
from stemdl.models.registry import build_network
from stemdl.models.scan_physics import ScanPhysics
from stemdl.models.scanfield import DARK_QUANTILE, PatternEncoder, ScanField, Stage, Upsampler, on_nominal_raster
from stemdl.models.symmetry import apply_to_picture

CHANNELS = 6


def randomised(module: nn.Module, seed: int = 0) -> Any:
    """Every weight drawn anew, the zeros of a fresh head included."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        fan_in = parameter[0].numel() if parameter.ndim > 1 else 10
        with torch.no_grad():
            parameter.normal_(std=fan_in**-0.5, generator=generator)
    return module.eval()


def stage_of(factor: int, **changes: Any) -> Stage:
    sizes = {"pattern_pixels": 8, "hidden": 16, "features": 8, "trunk": 8, "trunk_blocks": 1, **changes}
    return Stage(detector_pixels=(8, 8), factor=factor, channels=CHANNELS, **sizes)


def scan_with_content(positions: int, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Patterns and channels that are empty but for 2 x 2 positions in the middle."""
    generator = torch.Generator().manual_seed(1)
    low = positions // 2 - 1
    amplitude = torch.zeros(1, positions, positions, 8, 8)
    amplitude[:, low : low + 2, low : low + 2] = 0.1 * torch.rand(1, 2, 2, 8, 8, generator=generator)
    channels = torch.zeros(1, CHANNELS, positions * factor, positions * factor)
    inside = slice(low * factor, (low + 2) * factor)
    channels[..., inside, inside] = torch.rand(1, CHANNELS, 2 * factor, 2 * factor, generator=generator)
    return amplitude, channels


@pytest.fixture(scope="module")
def case() -> tuple[Config, FieldInputs]:
    config = small_config()
    fields = fields_of(config, 3)
    return config, FieldInputs(torch.from_numpy(fields.amplitude.astype(np.float32)), pictures_of(config, fields))


def of_stage(inputs: FieldInputs, stage: int) -> FieldInputs:
    """Inputs of the first stage as those of a later one: the answer before it comes first."""
    assert inputs.channels is not None
    answer = 0.5 * inputs.channels[:, 2:3] + 20
    return FieldInputs(inputs.amplitude, torch.cat([answer, inputs.channels], dim=1) if stage else inputs.channels)


class TestStage:
    def test_freshly_built_it_hands_on_what_physics_says(self) -> None:
        amplitude, channels = scan_with_content(8, 2)
        fresh = stage_of(2)
        assert torch.equal(fresh(amplitude, channels), channels[:, 0])
        assert not torch.equal(randomised(fresh)(amplitude, channels), channels[:, 0])

    @pytest.mark.parametrize("factor", [1, 2, 3, 4, 6])
    def test_what_moves_by_a_position_is_answered_a_position_further(self, factor: int) -> None:
        """Exactly, as long as content and borders do not see each other."""
        stage = randomised(stage_of(factor))
        amplitude, channels = scan_with_content(20, factor)
        with torch.no_grad():
            before = stage(amplitude, channels)
            after = stage(amplitude.roll((1, 2), (1, 2)), channels.roll((factor, 2 * factor), (2, 3)))
        inner = slice(5 * factor, -5 * factor)
        expected = before.roll((factor, 2 * factor), (1, 2))[0, inner, inner]
        assert float(expected.std()) > 0.01
        assert float((after[0, inner, inner] - expected).abs().max()) < 1e-4
        still = (after - before)[0, inner, inner]
        assert float(still.abs().max()) > 0.1  # unless shifted, it is another answer

    @pytest.mark.parametrize(("factor", "reach"), [(2, 5), (4, 4)])
    def test_borders_reach_as_far_as_the_context_and_the_trunk(self, factor: int, reach: int) -> None:
        """Two windows of one large scan, with the statistics of GroupNorm, those of a whole window, taken out.

        The context reaches 3 positions; join, one trunk block and head a pixel each.
        """
        stage = randomised(stage_of(factor))
        for module in stage.modules():
            if isinstance(module, nn.GroupNorm):
                module.forward = nn.Identity().forward  # type: ignore[method-assign]
        generator = torch.Generator().manual_seed(2)
        amplitude = 0.1 * torch.rand(1, 24, 24, 8, 8, generator=generator)
        channels = torch.rand(1, CHANNELS, 24 * factor, 24 * factor, generator=generator)
        with torch.no_grad():
            one, other = (
                stage(amplitude[:, low : low + 20, low : low + 20], channels[..., pixels, pixels])[0]
                for low in (2, 3)
                for pixels in [slice(low * factor, (low + 20) * factor)]
            )
        difference = (one[factor:, factor:] - other[:-factor, :-factor]).abs()
        inner, nearly = (slice(edge * factor, -edge * factor) for edge in (reach, reach - 1))
        assert float(difference[inner, inner].max()) < 1e-5
        assert float(difference[nearly, nearly].max()) > 1e-4

    def test_the_first_shuffle_puts_a_position_into_its_own_square(self) -> None:
        for factor in (2, 3, 4, 6):
            upsampler = randomised(Upsampler(8, 8, factor, blocks=0))
            features = torch.zeros(1, upsampler.width_in, 5, 5)
            flat = upsampler(features)
            features[:, :, 1, 3] = torch.rand(upsampler.width_in, generator=torch.Generator().manual_seed(3))
            changed = (upsampler(features) - flat).abs().amax(dim=(0, 1)) > 0
            expected = torch.zeros(5 * factor, 5 * factor, dtype=torch.bool)
            expected[factor : 2 * factor, 3 * factor : 4 * factor] = True
            assert torch.equal(changed, expected)

    @pytest.mark.parametrize("factor", [1, 2, 5, 12])
    @pytest.mark.parametrize("blocks", [1, 2])
    def test_any_whole_factor(self, factor: int, blocks: int) -> None:
        stage = stage_of(factor, trunk_blocks=blocks, features=6, trunk=10)  # widths that eight groups do not divide
        amplitude = torch.rand(2, 3, 4, 8, 8)
        answer = stage(amplitude, torch.rand(2, CHANNELS, 3 * factor, 4 * factor))
        assert answer.shape == (2, 3 * factor, 4 * factor)

    def test_answers_are_roots_and_so_never_negative(self) -> None:
        amplitude, channels = scan_with_content(8, 2)
        with torch.no_grad():
            answer = randomised(stage_of(2), 5)(amplitude, channels)
        assert float(answer.min()) == 0
        assert float(answer.max()) > 0

    def test_the_patterns_are_looked_at(self) -> None:
        stage = randomised(stage_of(2))
        amplitude, channels = scan_with_content(8, 2)
        with torch.no_grad():
            assert relative(stage(2 * amplitude, channels), stage(amplitude, channels)) > 0.01

    def test_light_and_heavy_fields_of_a_batch_do_not_meet(self) -> None:
        stage = randomised(stage_of(2)).train()
        generator = torch.Generator().manual_seed(4)
        amplitude = 0.1 * torch.rand(3, 6, 6, 8, 8, generator=generator)
        channels = (
            torch.rand(3, CHANNELS, 12, 12, generator=generator) * torch.tensor([1, 30, 0.1])[:, None, None, None]
        )
        together = stage(amplitude, channels)
        alone = torch.cat([stage(amplitude[i : i + 1], channels[i : i + 1]) for i in range(3)])
        assert torch.allclose(together, alone, rtol=1e-4, atol=1e-5)


def test_the_encoder_sees_every_pattern_alike_and_alone() -> None:
    encoder = randomised(PatternEncoder((9, 7), 24, 8, 4))
    assert encoder.binned == (9, 7)  # never more pixels than there are
    patterns = torch.rand(1, 3, 4, 9, 7, generator=torch.Generator().manual_seed(1))
    features = encoder(patterns)
    assert features.shape == (1, 4, 3, 4)
    alone = encoder(patterns[:, 1:2, 2:3])
    assert torch.allclose(features[..., 1, 2], alone[..., 0, 0], atol=1e-6)
    turned = encoder(patterns.transpose(1, 2))
    assert torch.allclose(turned, features.transpose(2, 3), atol=1e-6)


class TestDrawnSteps:
    """Features of a scan of another step are put where those of the nominal scan are."""

    steps = torch.tensor([1.0, 0.9, 1.2])

    @staticmethod
    def ramp(steps: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """(b, 2, rows, columns): what a plane in y, and one in x, are worth at the positions of each scan."""
        planes = torch.meshgrid(
            torch.arange(rows) - (rows - 1) / 2, torch.arange(columns) - (columns - 1) / 2, indexing="ij"
        )
        return steps[:, None, None, None] * torch.stack(planes)

    def test_a_plane_is_the_same_plane(self) -> None:
        found = on_nominal_raster(self.ramp(self.steps, 6, 9), self.steps)
        expected = self.ramp(torch.ones(3), 6, 9)
        assert torch.equal(found[0], expected[0])
        assert torch.allclose(found[2], expected[2], atol=1e-5)
        assert torch.allclose(found[1, :, 1:-1, 1:-1], expected[1, :, 1:-1, 1:-1], atol=1e-5)
        # The smaller scan ends before the field does: there its border goes on.
        assert found[1, 0, 0, 0] == pytest.approx(-0.9 * 2.5)

    def test_features_of_a_nominal_scan_stay_as_they_are(self) -> None:
        features = torch.rand(2, 5, 4, 7)
        assert torch.equal(on_nominal_raster(features, torch.ones(2)), features)
        assert on_nominal_raster(torch.rand(1, 3, 1, 1), torch.tensor([0.9])).shape == (1, 3, 1, 1)

    def test_it_turns_with_the_scan(self) -> None:
        features = torch.rand(3, 2, 5, 5)
        for operation in range(8):
            found = on_nominal_raster(apply_to_picture(features, operation), self.steps)
            assert torch.allclose(
                found, apply_to_picture(on_nominal_raster(features, self.steps), operation), atol=1e-6
            )

    def test_only_a_network_of_drawn_steps_looks_at_them(self, case: tuple[Config, FieldInputs]) -> None:
        _, inputs = case
        told = dataclasses.replace(inputs, scan_step_angstrom=torch.tensor([2.0, 1.8, 2.2]))
        fixed = randomised(build_network(small_config()))
        drawn = randomised(build_network(small_config(vary={"step_angstrom": {"choice": [1.8, 2.2]}})))
        with torch.no_grad():
            one, other = fixed.potential(told), drawn.potential(told)
            assert torch.equal(one, fixed.potential(inputs))
            assert torch.equal(drawn.potential(inputs), one)
        assert torch.allclose(other[0], one[0], rtol=1e-4)
        assert min(float((other[i] - one[i]).abs().max()) for i in (1, 2)) > 0.1  # V·Å


class TestNetwork:
    def test_it_is_built_by_its_name_with_what_the_physics_makes(self, case: tuple[Config, FieldInputs]) -> None:
        config, inputs = case
        network = build_network(config)
        assert isinstance(network, ScanField)
        assert inputs.channels is not None
        assert network.stages == 2
        assert network.channel_count(0) == inputs.channels.shape[1]
        answer = torch.full((8, 8), 200.0)
        again = ScanPhysics(config).after(inputs.amplitude[0], 20.0, answer, torch.full((32, 32), 200.0))
        assert network.channel_count(1) == again.pictures.shape[0]

    @pytest.mark.parametrize("scale", [1.0, 300.0])
    def test_a_fresh_network_answers_with_the_physics_above_its_dark_level(
        self, case: tuple[Config, FieldInputs], scale: float
    ) -> None:
        config, inputs = case
        network = build_network(config)
        network.scale_v_angstrom.fill_(scale)
        assert inputs.channels is not None
        last = inputs.channels[:, 2]  # potentials after 1, 2 and 3 steps, gradient, residual
        darkest = last.flatten(1).sort(dim=1).values
        dark = darkest[:, round(DARK_QUANTILE * darkest.shape[1]) - 1][:, None, None]
        with torch.no_grad():
            answer = network.potential(inputs, 0)
        assert relative(answer, (last - dark).clamp_min(0)) < 1e-4

    def test_a_fresh_later_stage_hands_on_the_answer_before_it(self, case: tuple[Config, FieldInputs]) -> None:
        config, inputs = case
        network = build_network(config)
        later = of_stage(inputs, 1)
        assert later.channels is not None
        with torch.no_grad():
            assert relative(network.potential(later, 1), later.channels[:, 0].clamp_min(0)) < 1e-4

    def test_the_constant_that_patterns_do_not_fix_is_not_looked_at(self, case: tuple[Config, FieldInputs]) -> None:
        config, inputs = case
        network = randomised(build_network(config))
        assert inputs.channels is not None
        lifted = inputs.channels.clone()
        lifted[:, :3] += 500.0  # V·Å on all potentials
        with torch.no_grad():
            one, other = network.potential(inputs), network.potential(FieldInputs(inputs.amplitude, lifted))
        assert relative(other, one) < 1e-3

    @pytest.mark.parametrize("stage", [0, 1])
    def test_the_gradient_reaches_every_weight_of_its_stage_and_no_other(
        self, case: tuple[Config, FieldInputs], stage: int
    ) -> None:
        config, inputs = case
        network = randomised(build_network(config))
        torch.autograd.backward(network(of_stage(inputs, stage), stage).square().sum())
        for name, parameter in network.named_parameters():
            if name.startswith(f"parts.{stage}."):
                assert parameter.grad is not None, name
                assert float(parameter.grad.abs().max()) > 0, name
            else:
                assert parameter.grad is None, name
        own = {id(parameter) for parameter in network.stage_module(stage).parameters()}
        assert own == {id(p) for name, p in network.named_parameters() if name.startswith(f"parts.{stage}.")}

    def test_the_first_gradient_of_a_fresh_network_moves_its_head(self, case: tuple[Config, FieldInputs]) -> None:
        config, inputs = case
        network = build_network(config)
        torch.autograd.backward(network(inputs, 0).square().sum())
        moved = {
            name
            for name, parameter in network.stage_module(0).named_parameters()
            if parameter.grad is not None and float(parameter.grad.abs().max()) > 0
        }
        assert {"head.weight", "head.bias"} <= moved

    @pytest.mark.parametrize("positions", [(4, 4), (7, 5), (2, 9)])
    def test_scans_of_other_sizes_than_it_was_built_for(self, positions: tuple[int, int]) -> None:
        network = randomised(build_network(small_config()))
        config = small_config(scan__positions=positions)
        fields = fields_of(config, 2)
        inputs = FieldInputs(torch.from_numpy(fields.amplitude.astype(np.float32)), pictures_of(config, fields))
        with torch.no_grad():
            answer = network.potential(inputs, 0)
        assert answer.shape == (2, positions[0] * 2, positions[1] * 2)
        assert bool(answer.isfinite().all())

    def test_a_larger_scan_shows_the_same_field_in_its_middle(self, case: tuple[Config, FieldInputs]) -> None:
        """Not the same bits: borders and whole-field statistics differ; but the same picture."""
        network = build_network(small_config())
        small, large = (
            FieldInputs(torch.from_numpy(fields.amplitude.astype(np.float32)), pictures_of(config, fields))
            for config in (small_config(), small_config(scan__positions=(6, 6)))
            for fields in [fields_of(config, 2)]
        )
        with torch.no_grad():
            one, other = network.potential(small, 0), network.potential(large, 0)[:, 2:-2, 2:-2]
        assert min(correlation(a, b) for a, b in zip(one, other, strict=True)) > 0.8

    def test_an_empty_field_is_answered_with_numbers(self) -> None:
        network = randomised(build_network(small_config()))
        inputs = FieldInputs(torch.zeros(1, 4, 4, 24, 24), torch.zeros(1, 5, 8, 8))
        for stage in (0, 1):
            answer = network(of_stage(inputs, stage), stage)
            torch.autograd.backward(answer.sum())
            assert bool(answer.isfinite().all())
        assert all(bool(parameter.grad.isfinite().all()) for parameter in network.parameters())

    def test_its_scale_travels_with_its_weights(self) -> None:
        network = build_network(small_config())
        network.scale_v_angstrom.fill_(123.0)
        other = build_network(small_config())
        other.load_state_dict(network.state_dict())
        assert float(other.scale_v_angstrom) == 123.0

    def test_a_target_that_does_not_divide_the_step_is_refused_with_its_key(self) -> None:
        with pytest.raises(NetworkConfigError, match=r"^target\.pixel_angstrom: "):
            build_network(small_config(target__pixel_angstrom=0.75))


def test_a_network_must_say_what_it_answers() -> None:
    bare = PotentialNetwork()
    assert (bare.stages, bare.channel_count(), bare.stage_module(0)) == (1, 0, bare)
    with pytest.raises(NotImplementedError):
        bare(FieldInputs(torch.zeros(1, 1, 1, 2, 2)))
