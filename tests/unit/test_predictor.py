"""A network applied to fields: the same bits on any number of threads, averaged over symmetries, stage after stage."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from field_cases import THICKNESS, fields_of, model_of, small_config
from stemdl.config import Config
from stemdl.models.base import FieldInputs, PotentialNetwork
from stemdl.models.predictor import Predictor, field_physics, one_thread_per_operation
from stemdl.models.registry import build_network
from stemdl.models.scan_physics import FieldPhysics, ScanPhysics
from stemdl.shards.fields import Fields

FC_DENSENET = {"name": "fc_densenet", "growth": 4, "blocks": (1, 1, 1)}


@pytest.fixture(scope="module")
def fields() -> Fields:
    return fields_of(small_config(), 5)


def predictor_of(config: Config, network: PotentialNetwork | None = None, threads: int = 1) -> Predictor:
    torch.manual_seed(1)
    if network is None:
        network = build_network(config)
        network.scale_v_angstrom.fill_(250.0)
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
    return Predictor(config, network, threads=threads)


class Ramp(PotentialNetwork):
    """Answers with a ramp along x whatever it is given: not what a symmetric world would say."""

    def forward(self, inputs: FieldInputs, stage: int = 0) -> torch.Tensor:
        batch, sy, sx = inputs.amplitude.shape[:3]
        return torch.arange(1.0, 2 * sx + 1).sqrt().expand(batch, 2 * sy, 2 * sx)


class Brightness(PotentialNetwork):
    """Answers with the intensity of each pattern: turns with the scan."""

    def forward(self, inputs: FieldInputs, stage: int = 0) -> torch.Tensor:
        bright = inputs.amplitude.square().sum(dim=(-2, -1))
        return bright.repeat_interleave(2, 1).repeat_interleave(2, 2)


class TestPhysics:
    @pytest.mark.parametrize("threads", [2, 5])
    def test_the_bits_do_not_depend_on_threads(self, fields: Fields, threads: int) -> None:
        physics = ScanPhysics(small_config())
        one = field_physics(physics, fields.amplitude, fields.thickness_angstrom, threads=1)
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(3)
            many = field_physics(physics, fields.amplitude, fields.thickness_angstrom, threads=threads)
            assert torch.get_num_threads() == 3
        finally:
            torch.set_num_threads(before)
        assert torch.equal(many.pictures, one.pictures)
        assert torch.equal(many.box, one.box)

    def test_fields_keep_their_order_and_their_thickness(self, fields: Fields) -> None:
        physics = ScanPhysics(small_config())
        thickness = THICKNESS + np.arange(5.0)
        done: list[int] = []
        result = field_physics(physics, fields.amplitude, thickness, threads=3, done=done.append)
        assert done == [1, 2, 3, 4, 5]
        for index in range(5):
            alone = physics.first(torch.from_numpy(fields.amplitude[index].astype(np.float32)), thickness[index])
            assert torch.equal(result.pictures[index], alone.pictures)

    def test_from_answers_it_starts_at_each_field_s_own(self, fields: Fields) -> None:
        physics = ScanPhysics(small_config())
        first = field_physics(physics, fields.amplitude, fields.thickness_angstrom, threads=2)
        again = field_physics(
            physics, fields.amplitude, fields.thickness_angstrom, (fields.potential, first), threads=2
        )
        for index in range(5):
            amplitude = torch.from_numpy(fields.amplitude[index].astype(np.float32))
            answer = torch.from_numpy(fields.potential[index])
            alone = physics.after(amplitude, THICKNESS, answer, first.box[index])
            assert torch.equal(again.pictures[index], alone.pictures)

    def test_each_field_is_looked_at_with_its_own_optics(self, fields: Fields) -> None:
        physics = ScanPhysics(small_config())
        energies = np.linspace(80, 120, 5)
        parameters = {"energy_kev": energies, "tilt_mrad": np.ones(5)}
        first = field_physics(physics, fields.amplitude, fields.thickness_angstrom, parameters=parameters, threads=2)
        start = (fields.potential, first)
        again = field_physics(
            physics, fields.amplitude, fields.thickness_angstrom, start, parameters=parameters, threads=2
        )
        for index, energy in enumerate(energies):
            amplitude = torch.from_numpy(fields.amplitude[index].astype(np.float32))
            own = {"energy_kev": float(energy)}
            assert torch.equal(first.pictures[index], physics.first(amplitude, THICKNESS, own).pictures)
            answer = torch.from_numpy(fields.potential[index])
            alone = physics.after(amplitude, THICKNESS, answer, first.box[index], own)
            assert torch.equal(again.pictures[index], alone.pictures)
        nominal = field_physics(physics, fields.amplitude, fields.thickness_angstrom, threads=2)
        assert torch.equal(nominal.pictures[2], first.pictures[2])  # of 100 keV
        assert not torch.equal(nominal.pictures[0], first.pictures[0])

    def test_what_goes_wrong_in_a_field_is_not_lost(self, fields: Fields) -> None:
        physics = ScanPhysics(small_config())
        wrong: Any = [*fields.amplitude[:2], fields.amplitude[0][:2]]
        before, running = torch.get_num_threads(), threading.active_count()
        with pytest.raises(RuntimeError, match="shape"):
            field_physics(physics, wrong, [THICKNESS] * 3, threads=2)
        assert torch.get_num_threads() == before
        assert threading.active_count() == running

    def test_each_field_is_the_work_of_one_thread(self, fields: Fields, monkeypatch: pytest.MonkeyPatch) -> None:
        physics = ScanPhysics(small_config())
        real, threads = physics.first, set()

        def remember(*args: Any) -> FieldPhysics:
            threads.add(torch.get_num_threads())
            return real(*args)

        monkeypatch.setattr(physics, "first", remember)
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(3)
            field_physics(physics, fields.amplitude, fields.thickness_angstrom, threads=2)
        finally:
            torch.set_num_threads(before)
        assert threads == {1}

    def test_one_thread_inside_and_as_many_as_before_behind(self) -> None:
        before = torch.get_num_threads()
        with pytest.raises(KeyError), one_thread_per_operation():
            assert torch.get_num_threads() == 1
            raise KeyError
        assert torch.get_num_threads() == before


class TestAverage:
    def test_an_unsymmetric_answer_is_averaged_away_and_shown_as_spread(self, fields: Fields) -> None:
        predictor = predictor_of(small_config(), Ramp())
        prediction = predictor.stage(fields.amplitude, None, 0, average=True, batch=2)
        assert prediction.potential.shape == prediction.spread.shape == (5, 8, 8)
        assert np.allclose(prediction.potential, 4.5)  # the mean of 1 to 8
        values = np.arange(1.0, 9.0)
        along_y, along_x = values[:, None], values
        eight = np.stack(np.broadcast_arrays(*[along_y, 9 - along_y, along_x, 9 - along_x] * 2))
        assert np.allclose(prediction.spread[0], eight.std(axis=0), atol=1e-5)

    def test_a_symmetric_answer_has_no_spread_and_is_not_moved(self, fields: Fields) -> None:
        predictor = predictor_of(small_config(), Brightness())
        amplitude = fields.amplitude * np.linspace(0.5, 1, 16, dtype=np.float16).reshape(4, 4, 1, 1)
        averaged = predictor.stage(amplitude, None, 0, average=True, batch=2)
        plain = predictor.stage(amplitude, None, 0, average=False, batch=2)
        assert np.allclose(averaged.potential, plain.potential, rtol=1e-5)
        assert averaged.spread.max() < 1e-6
        assert plain.spread.max() == 0

    def test_channels_turn_with_the_patterns(self, fields: Fields) -> None:
        """The physics of turned patterns is the turned physics, so a fresh network's answers agree."""
        config = small_config()
        network = build_network(config)
        predictor = predictor_of(config, network)
        physics = predictor.look(fields.amplitude, fields.thickness_angstrom)
        prediction = predictor.stage(fields.amplitude, physics, 0, average=True, batch=5)
        assert prediction.spread.max() < 1e-3 * prediction.potential.max()

    @pytest.mark.parametrize("changes", [{"scan__positions": (4, 3)}, {"detector__pixels": (24, 20)}])
    def test_oblong_scans_and_detectors_are_not_transposed(self, changes: dict[str, Any]) -> None:
        config = small_config(**changes)
        fields = fields_of(config, 2)
        predictor = predictor_of(config)
        physics = predictor.look(fields.amplitude, fields.thickness_angstrom)
        prediction = predictor.stage(fields.amplitude, physics, 0, average=True, batch=2)
        assert prediction.potential.shape == fields.potential.shape
        assert prediction.spread.max() > 0

    def test_an_astigmatic_probe_is_averaged_over_the_half_turn_alone(self, fields: Fields) -> None:
        predictor = predictor_of(small_config(microscope__astigmatism_angstrom=50.0), Ramp())
        potential = predictor.stage(fields.amplitude, None, 0, average=True, batch=2).potential
        assert np.allclose(potential, 4.5)  # a ramp and the same turned round
        spread = predictor.stage(fields.amplitude, None, 0, average=True, batch=2).spread
        assert np.allclose(spread, np.abs(np.arange(1.0, 9.0) - 4.5).astype(np.float32), atol=1e-5)


class TestPredict:
    def test_it_is_physics_and_network_in_turn(self, fields: Fields) -> None:
        config = small_config()
        predictor = predictor_of(config, threads=2)
        done: list[int] = []
        prediction, first = predictor.predict(
            fields.amplitude, fields.thickness_angstrom, average=True, batch=2, done=done.append
        )
        assert done == list(range(1, 11))
        assert first is not None
        look = predictor.look(fields.amplitude, fields.thickness_angstrom)
        assert look is not None
        assert torch.equal(look.pictures, first.pictures)
        answer = predictor.stage(fields.amplitude, look, 0, average=True, batch=2)
        again = predictor.look(fields.amplitude, fields.thickness_angstrom, (answer.potential, look))
        by_hand = predictor.stage(fields.amplitude, again, 1, average=True, batch=2)
        assert np.array_equal(prediction.potential, by_hand.potential)
        assert np.array_equal(prediction.spread, by_hand.spread)
        assert not np.allclose(prediction.potential, answer.potential)

    def test_the_network_is_told_the_scan_step_of_each_field(self, fields: Fields) -> None:
        told: list[list[float] | None] = []

        class Listening(Brightness):
            def forward(self, inputs: FieldInputs, stage: int = 0) -> torch.Tensor:
                told.append(None if inputs.scan_step_angstrom is None else inputs.scan_step_angstrom.tolist())
                return super().forward(inputs, stage)

        predictor = predictor_of(small_config(), Listening())
        keys: Any = {"average": False, "batch": 2}
        predictor.stage(fields.amplitude, None, 0, parameters={"scan_step_angstrom": np.arange(1.0, 6.0)}, **keys)
        predictor.stage(fields.amplitude, None, 0, parameters={"energy_kev": np.ones(5)}, **keys)
        assert told == [[1.0, 2.0], [3.0, 4.0], [5.0], None, None, None]

    def test_all_stages_know_what_each_field_was_recorded_with(self, fields: Fields) -> None:
        config = small_config(vary={"energy_kev": {"choice": [80.0, 120.0]}, "step_angstrom": {"choice": [1.8, 2.2]}})
        parameters = {"energy_kev": np.array([80.0, 120.0] * 2), "scan_step_angstrom": np.array([1.8, 1.8, 2.2, 2.2])}
        predictor = predictor_of(config)
        amplitude, thickness = fields.amplitude[:4], fields.thickness_angstrom[:4]
        keys: Any = {"average": True, "batch": 3}
        together, _ = predictor.predict(amplitude, thickness, parameters=parameters, **keys)
        for index in range(4):
            own = {name: column[index : index + 1] for name, column in parameters.items()}
            alone, _ = predictor.predict(amplitude[index : index + 1], thickness[:1], parameters=own, **keys)
            assert np.allclose(alone.potential[0], together.potential[index], rtol=1e-3, atol=1e-2)
        for name in parameters:
            less = {other: column for other, column in parameters.items() if other != name}
            other, _ = predictor.predict(amplitude, thickness, parameters=less, **keys)
            assert not np.allclose(other.potential, together.potential, rtol=1e-2)

    @pytest.mark.parametrize("batch", [1, 3, 100])
    def test_the_batch_does_not_matter(self, fields: Fields, batch: int) -> None:
        predictor = predictor_of(small_config())
        one, _ = predictor.predict(fields.amplitude, fields.thickness_angstrom, average=False, batch=2)
        other, _ = predictor.predict(fields.amplitude, fields.thickness_angstrom, average=False, batch=batch)
        assert np.allclose(one.potential, other.potential, rtol=1e-3, atol=1e-2)
        assert one.potential.dtype == np.float32

    def test_a_network_without_physics(self) -> None:
        config = small_config(network=FC_DENSENET, target__pixel_angstrom=8 / 24)
        amplitude = np.stack([model_of(config).amplitudes(torch.zeros(32, 32)).numpy()] * 3)
        predictor = predictor_of(config)
        predictor.network.train()
        assert predictor.physics is None
        prediction, first = predictor.predict(amplitude, np.full(3, THICKNESS), average=True, batch=2)
        assert first is None
        assert prediction.potential.shape == (3, 24, 24)
        # Evaluated without dropout: equal fields have equal answers.
        assert np.allclose(prediction.potential[0], prediction.potential[1], rtol=1e-5)
        assert not predictor.network.training
