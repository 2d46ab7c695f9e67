"""Draws in a configuration: their values, what they may not be, and the configuration of one sample."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimal_config import MINIMAL
from stemdl.config import Config, ConfigError, Problem, load_config
from stemdl.config.fields import node_at
from stemdl.config.substitute import STORED_AS, with_values
from stemdl.config.variation import SECTION_OF, Draw, Vary


def load(folder: Path, *overrides: str) -> Config:
    path = folder / "minimal.yaml"
    path.write_text(MINIMAL)
    return load_config(path, overrides)


def only_problem(folder: Path, *overrides: str) -> Problem:
    with pytest.raises(ConfigError) as caught:
        load(folder, *overrides)
    assert len(caught.value.problems) == 1, str(caught.value)
    return caught.value.problems[0]


class TestDraw:
    @pytest.mark.parametrize(
        ("draw", "values"),
        [
            (Draw(uniform=(2.0, 6.0)), (2.0, 3.0, 4.0)),
            (Draw(uniform=(-1.0, 1.0)), (-1.0, -0.5, 0.0)),
            (Draw(uniform=(0.1, 0.1)), (0.1, 0.1, 0.1)),
            (Draw(log_uniform=(1.0, 1e4)), (1.0, 10.0, 100.0)),
            (Draw(choice=(5.0, 1.0, 3.0, 3.0)), (5.0, 1.0, 3.0)),
        ],
    )
    def test_values_at_the_start_a_quarter_and_half(self, draw: Draw, values: tuple[float, ...]) -> None:
        assert [draw.at(quantile) for quantile in (0.0, 0.25, 0.5)] == pytest.approx(values, rel=1e-12)

    @pytest.mark.parametrize("draw", [Draw(uniform=(0.1, 0.7)), Draw(log_uniform=(0.1, 0.7)), Draw(choice=(0.1, 0.7))])
    def test_nothing_beyond_the_limits(self, draw: Draw) -> None:
        last = 1 - 2**-53
        assert all(0.1 <= draw.at(quantile) <= 0.7 for quantile in (0.0, 1e-300, 0.3, last))
        assert draw.at(last) == pytest.approx(0.7)
        assert draw.limits == (0.1, 0.7)

    def test_the_nearest_value_that_can_be(self) -> None:
        assert [Draw(uniform=(2.0, 6.0)).nearest(value) for value in (1.0, 3.0, 9.0)] == [2.0, 3.0, 6.0]
        assert [Draw(choice=(60.0, 200.0)).nearest(value) for value in (100.0, 150.0)] == [60.0, 200.0]


def test_every_draw_takes_the_place_of_a_key_of_its_name(tmp_path: Path) -> None:
    assert set(SECTION_OF) == set(Vary.model_fields)
    config = load(tmp_path)
    for name, section in SECTION_OF.items():
        assert name in type(getattr(config, section)).model_fields
        sentence = str((node_at(("vary", name), {}) or {})["description"])
        assert f"in place of {section}.{name}" in sentence


class TestOneSample:
    def test_values_go_where_they_belong(self, tmp_path: Path) -> None:
        config = load(tmp_path, "vary.energy_kev={uniform: [60, 300]}")
        values = {name: 1.0 + place for place, name in enumerate(SECTION_OF)}
        one = with_values(config, values)
        for name, section in SECTION_OF.items():
            assert getattr(getattr(one, section), name) == values[name]
        assert one.vary == Vary()
        assert one.scan.positions == config.scan.positions
        assert config.microscope.energy_kev == 100.0, "the configuration itself is as it was"

    def test_parameters_stored_with_a_sample_may_be_given_as_they_are(self, tmp_path: Path) -> None:
        config = load(tmp_path)
        one = with_values(config, {"scan_step_angstrom": 1.75, "thickness_angstrom": 20.0, "dose_quantile": 0.5})
        assert STORED_AS == {"step_angstrom": "scan_step_angstrom"}
        assert one.scan.step_angstrom == 1.75
        assert one.model_copy(update={"scan": config.scan}) == config

    def test_no_values_leave_the_configuration_as_it_is(self, tmp_path: Path) -> None:
        config = load(tmp_path)
        assert with_values(config, {}) == config


class TestMistakes:
    @pytest.mark.parametrize(
        ("override", "key", "found", "allowed", "nearest", "hint"),
        [
            # inside a section that may also be null
            ("{uniform: [300, 80]}", ".uniform", "(300) is above the largest (80)", "list of 2, each a number", "", ""),
            ("{log_uniform: [0, 80]}", ".log_uniform", "0 is not above zero", "both above zero", "", ""),
            ("{unifrm: [80, 300]}", ".unifrm", "unknown key 'unifrm'", "uniform, log_uniform, choice", "…uniform", ""),
            ("{uniform: [80]}", ".uniform", "a list of 1", "null or a list of 2", "", ""),
            ("{uniform: 80}", ".uniform", "80", "a list of 2", "", "write [80, 80]"),
            ("{uniform: [80, x]}", ".uniform.1", 'text "x"', "a number", "", ""),
            ("{choice: []}", ".choice", "a list of 0", "at least 1", "", ""),
            ("{}", "", "no key given, exactly one", "a section with uniform, log_uniform, choice", "", ""),
            ("{uniform: [80, 90], choice: [80]}", "", "uniform and choice given", "a section with uniform", "", ""),
            # no section at all
            ("[80, 300]", "", "a list of 2", "null or a section", "", "write {uniform: [80, 300]} for all"),
            ("[80, 200, 300]", "", "a list of 3", "a section", "", "write {choice: [80, 200, 300]}"),
            ("80", "", "80", "a section", "", "belongs into microscope.energy_kev"),
            ("eighty", "", 'text "eighty"', "a section", "", ""),
            # what the section itself would refuse
            ("{uniform: [80, 300000]}", "", "300000", "microscope.energy_kev may be: a number from 10 to", "", "volts"),
            ("{choice: [100, 5]}", "", "5", "from 10 to 1500", "", ""),
            ("{log_uniform: [0.1, 200]}", "", "0.1", "from 10 to 1500", "", "looks like MeV"),
        ],
    )
    def test_of_a_draw(
        self, tmp_path: Path, override: str, key: str, found: str, allowed: str, nearest: str, hint: str
    ) -> None:
        problem = only_problem(tmp_path, f"vary.energy_kev={override}")
        assert problem.key == f"vary.energy_kev{key}"
        assert problem.place == "--set vary.energy_kev"
        assert found in problem.found
        assert allowed in problem.allowed
        assert problem.nearest == nearest.replace("…", "vary.energy_kev.")
        assert hint in problem.hint
        assert bool(hint) == bool(problem.hint)

    @pytest.mark.parametrize(
        ("key", "draw", "words"),
        [
            ("semiangle_mrad", "{uniform: [0.02, 0.03]}", "0.02 looks like rad"),
            ("astigmatism_angstrom", "{uniform: [-5, 5]}", ""),
            ("source_sigma_angstrom", "{choice: [0, -0.1]}", ""),
            ("step_angstrom", "{uniform: [0, 2]}", ""),
            ("jitter_sigma_angstrom", "{uniform: [-0.1, 0.1]}", ""),
            ("drift_angstrom", "{uniform: [-1, 1]}", ""),
            ("tilt_mrad", "{uniform: [-1, 1]}", ""),
            ("displacement_sigma_angstrom", "{uniform: [-1, 1]}", ""),
            ("dose_e_per_a2", "{choice: [0, 100]}", ""),
        ],
    )
    def test_every_limit_of_a_section_holds_for_its_draw(self, tmp_path: Path, key: str, draw: str, words: str) -> None:
        problem = only_problem(tmp_path, f"vary.{key}={draw}")
        assert problem.key == f"vary.{key}"
        assert f"{SECTION_OF[key]}.{key}" in problem.allowed
        assert words in problem.hint

    def test_several_at_once_each_with_its_line(self, tmp_path: Path) -> None:
        path = tmp_path / "minimal.yaml"
        path.write_text(MINIMAL + "vary:\n  energy_kev: {uniform: [1, 2]}\n  tilt_mrad:\n    chioce: [1]\n")
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        first = MINIMAL.count("\n") + 2
        assert [(one.key, one.place) for one in caught.value.problems] == [
            ("vary.energy_kev", f"{path}:{first}"),
            ("vary.tilt_mrad.chioce", f"{path}:{first + 2}"),
        ]
        assert caught.value.problems[1].nearest == "vary.tilt_mrad.choice"

    def test_a_draw_in_the_place_of_a_value(self, tmp_path: Path) -> None:
        problem = only_problem(tmp_path, "scan.step_angstrom={uniform: [1.8, 2.2]}")
        assert "vary.step_angstrom" in problem.hint

    def test_a_key_of_a_draw_can_be_set_alone(self, tmp_path: Path) -> None:
        config = load(tmp_path, "vary.energy_kev.uniform=[80, 90]")
        assert config.vary.draws == {"energy_kev": Draw(uniform=(80.0, 90.0))}
        assert only_problem(tmp_path, "vary.energy_kev.unifom=[80, 90]").nearest == "vary.energy_kev.uniform"
        assert load(tmp_path, "vary.energy_kev=null").vary.draws == {}
