"""Reading a configuration: every kind of mistake gives its key, its line, what is allowed and what was meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from minimal_config import MINIMAL
from stemdl.config import Config, ConfigError, Problem, load_config

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
QUICKSTART = (CONFIGS / "quickstart.yaml").read_text(encoding="utf-8")

Load = Callable[..., Config]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load_text(text: str | bytes, *overrides: str) -> Config:
        path = tmp_path / "it is.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_config(path, overrides)

    return load_text


def problems_of(load: Load, text: str | bytes, *overrides: str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    return caught.value.problems


def only_problem(load: Load, text: str | bytes, *overrides: str) -> Problem:
    problems = problems_of(load, text, *overrides)
    assert len(problems) == 1, [str(problem) for problem in problems]
    return problems[0]


def replaced(old: str, new: str) -> str:
    assert MINIMAL.count(old) == 1, old
    return MINIMAL.replace(old, new)


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def test_minimal_file_loads_with_defaults(load: Load) -> None:
    config = load(MINIMAL)
    assert config.train.lr == 3e-3
    assert config.specimen.thickness_angstrom == (20.0, 20.0)
    assert isinstance(config.microscope.energy_kev, float)
    assert config.detector.dose_e_per_a2 is None


@pytest.mark.parametrize(
    ("old", "new", "key", "found", "allowed", "nearest"),
    [
        # unknown keys, near and far
        ("  steps: 10", "  stesp: 10\n  steps: 10", "train.stesp", "unknown key", "warmup_steps", "train.steps"),
        ("  steps: 10", "  steps: 10\n  learning: 1", "train.learning", "unknown key", "batch, optimizer, lr", ""),
        (
            "  steps: 10",
            "  steps: 10\n  dose_e_per_a2: 1",
            "train.dose_e_per_a2",
            "unknown",
            "",
            "detector.dose_e_per_a2",
        ),
        ("train:", "reprot: {}\ntrain:", "reprot", "unknown key", "run, crystals", "report"),
        (
            "    pixel_angstrom: 0.3333333333333333",
            "    pixel_angstrom: 0.3333333333333333\n    slice: 3",
            "network.back_projection.slice",
            "unknown key",
            "pixel_angstrom, slices",
            "network.back_projection.slices",
        ),
        ("  name: scanfield", "  name: scanfield\n  feature: 3", "network.feature", "unknown", "", "network.features"),
        ("  name: scanfield", "  name: scanfield\n  growth: 3", "network.growth", "unknown", "trunk_blocks", ""),
        # wrong types
        ("  steps: 10", "  steps: 10.0", "train.steps", "10.0", "a whole number above 0", ""),
        ("  steps: 10", "  steps: true", "train.steps", "true", "a whole number", ""),
        ("  steps: 10", '  steps: "10"', "train.steps", 'text "10"', "a whole number", ""),
        ("  steps: 10", "  steps:", "train.steps", "nothing", "a whole number", ""),
        ("  steps: 10", "  steps: [10]", "train.steps", "a list of 1", "a whole number", ""),
        ("  box_angstrom: 24.0", "  box_angstrom: false", "specimen.box_angstrom", "false", "a number above 0", ""),
        ("  box_angstrom: 24.0", "  box_angstrom: {a: 1}", "specimen.box_angstrom", "a section", "a number", ""),
        ("  positions: [8, 8]", "  positions: 8", "scan.positions", "8", "a list of 2", ""),
        ("  positions: [8, 8]", "  positions: [8]", "scan.positions", "a list of 1", "a list of 2", ""),
        ("  positions: [8, 8]", "  positions: [8, 8, 8]", "scan.positions", "a list of 3", "a list of 2", ""),
        ("  positions: [8, 8]", "  positions: [8, x]", "scan.positions.1", 'text "x"', "a whole number above 0", ""),
        ("  steps: 10", "  steps: 10\n  augment: yes", "train.augment", 'text "yes"', "true or false", ""),
        ("held_out:\n  pixel_angstrom: 0.1875\n  slice_angstrom: 1.0", "held_out: 3", "held_out", "3", "a section", ""),
        ("run:\n  folder: out", "run:\n  folder: 3", "run.folder", "3", "a path", ""),
        # out of range
        ("  steps: 10", "  steps: 0", "train.steps", "0", "above 0", ""),
        ("  steps: 10", "  steps: 10\n  ema_decay: 1", "train.ema_decay", "1", "of at least 0, below 1", ""),
        ("  step_angstrom: 2.0", "  step_angstrom: 1e999", "scan.step_angstrom", "inf", "above 0", ""),
        ("  name: scanfield", "  name: scanfield\n  stages: 9", "network.stages", "9", "from 1 to 4", ""),
        ("[20, 20]", "[30, 20]", "specimen.thickness_angstrom", "(30.0) is above the largest (20.0)", "list of 2", ""),
        ("[20, 20]", "[20, 20]\n  zone_axes: [[0,0,0]]", "specimen.zone_axes", "no direction", "at least 1", ""),
        ("[20, 20]", "[20, 20]\n  zone_axes: []", "specimen.zone_axes", "a list of 0", "at least 1", ""),
        ("[20, 20]", "[20, 20]\n  zone_axes: [[0, 1]]", "specimen.zone_axes.0", "a list of 2", "a list of 3", ""),
        ("train:", "crystals: {library: false}\ntrain:", "crystals.cif_folders", "no crystals", "a list", ""),
        # names
        (
            "  samples: 10",
            "  samples: 10\n  engine: tourch",
            "simulation.engine",
            '"tourch"',
            "torch or abtem",
            "torch",
        ),
        (
            "  name: scanfield",
            "  name: ScanField",
            "network.name",
            '"ScanField"',
            "fc_densenet or scanfield",
            "scanfield",
        ),
        ("  name: scanfield", "  name: 3", "network.name", "3", "fc_densenet or scanfield", ""),
        # missing
        ("  steps: 10", "  batch: 10", "train.steps", "no such key", "a whole number above 0", ""),
        ("  name: scanfield\n", "", "network.name", "no such key", "fc_densenet or scanfield", ""),
    ],
)
def test_one_mistake(load: Load, old: str, new: str, key: str, found: str, allowed: str, nearest: str) -> None:
    problem = only_problem(load, replaced(old, new))
    assert problem.key == key
    assert found in problem.found
    assert allowed in problem.allowed
    assert problem.nearest == nearest


def test_lines_are_exact(load: Load) -> None:
    text = replaced("  step_angstrom: 2.0", "  # a comment\n\n  step_angstrom: -2")
    assert only_problem(load, text).place.endswith(f"it is.yaml:{line_of(text, '  step_angstrom: -2')}")
    text = replaced("  steps: 10", "  batch: 3")
    assert only_problem(load, text).place.endswith(f":{line_of(text, 'train:')}")
    text = MINIMAL.replace("train:\n  steps: 10\n", "")
    missing = only_problem(load, text)
    assert missing.key == "train"
    assert missing.place.endswith("it is.yaml")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("energy_kev: 100", "energy_kev: 100000", "looks like volts: 100 keV is `energy_kev: 100`"),
        ("energy_kev: 100", "energy_kev: 80e3", "looks like volts: 80 keV"),
        ("energy_kev: 100", "energy_kev: 0.1", "looks like MeV: 100 keV"),
        ("semiangle_mrad: 20.0", "semiangle_mrad: 0.02", "looks like rad: 20 mrad is `semiangle_mrad: 20`"),
        ("step_angstrom: 2.0", "step_angstrom: 2,0", "a point for the decimals"),
        ("step_angstrom: 2.0", "step_angstrom: 2.0 Å", "unit is in the key's name"),
        ("step_angstrom: 2.0", "step_angstrom: '2.0'", "without quotes"),
        ("samples: 10", "samples: 1_000", "write 1000"),
        ("samples: 10", "samples: 010", "write 10, plain digits"),
        ("steps: 10", "steps: 10\n  augment: off", "write false"),
        ("positions: [8, 8]", "positions: 8", "write [8, 8]"),
        ("train:", "crystals: {include: Si-diamond}\ntrain:", "write [Si-diamond]"),
        ("train:", "report:\ntrain:", "left empty"),
        ("  name: scanfield", "  name: scanfield\n  kernel: 3", "another network has it, scanfield has not"),
    ],
)
def test_hints(load: Load, old: str, new: str, words: str) -> None:
    assert words in only_problem(load, replaced(old, new)).hint


def test_no_hint_where_the_value_is_only_wrong(load: Load) -> None:
    assert only_problem(load, replaced("energy_kev: 100", "energy_kev: 5000")).hint == ""
    assert only_problem(load, replaced("semiangle_mrad: 20.0", "semiangle_mrad: 400")).hint == ""


def test_all_problems_at_once_in_the_order_of_the_file(load: Load) -> None:
    text = MINIMAL.replace("box_angstrom: 24.0", "box_angstrom: -1\n  box_angstrom: 24.0")
    text = text.replace("folder: out", "folder: $SCRATCH/out").replace("steps: 10", "steps: 1.5\n  stepz: 3")
    problems = problems_of(load, text)
    keys = [problem.key for problem in problems]
    assert keys == ["run.folder", "specimen.box_angstrom", "specimen.box_angstrom", "train.steps", "train.stepz"]


def test_the_message_has_every_part(load: Load) -> None:
    text = replaced("  steps: 10", "  steps: 10\n  wieght_decay: 1")
    with pytest.raises(ConfigError) as caught:
        load(text)
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("it is.yaml: 1 problem")
    assert lines[1].endswith(f"it is.yaml:{line_of(text, '  wieght_decay')}: train.wieght_decay")
    assert [line.split()[0] for line in lines[2:]] == ["found", "allowed", "nearest"]
    assert "train.weight_decay" in lines[4]


@pytest.mark.parametrize(
    ("content", "found", "line"),
    [
        (b"", "an empty file", 0),
        (b"# only a comment\n", "an empty file", 0),
        (b"- a\n- b\n", "a list of 2", 0),
        (b"just text\n", 'text "just text"', 0),
        (b"run:\n  folder: caf\xe9\n", "the byte 0xe9", 2),
        (b"\xff\xfer\x00u\x00n\x00", "the byte 0xff", 1),
        (b"run:\n\tfolder: x\n", "cannot start any token", 2),
        (b"run: {folder: x\n", "flow mapping", 2),
        (b"#" * 2_000_000, "bytes", 0),
    ],
)
def test_files_that_are_no_configuration(load: Load, content: bytes, found: str, line: int) -> None:
    problem = only_problem(load, content)
    assert found in problem.found
    assert problem.place.endswith(f"it is.yaml:{line}" if line else "it is.yaml")


def test_byte_order_mark_and_windows_line_ends(load: Load) -> None:
    assert load(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode()) == load(MINIMAL)


def test_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "quickstart.yaml").write_text(MINIMAL)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "quikstart.yaml")
    problem = caught.value.problems[0]
    assert problem.found == "no such file"
    assert problem.nearest == str(tmp_path / "quickstart.yaml")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path)
    assert caught.value.problems[0].found == "a folder"
    assert "quickstart.yaml" in caught.value.problems[0].allowed
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "nowhere" / "file.yaml")


def test_a_device_is_not_read() -> None:
    with pytest.raises(ConfigError, match="device or pipe"):
        load_config(Path("/dev/zero"))


class TestPaths:
    def test_relative_to_the_file(self, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir("/")
        text = replaced("folder: out", "folder: ../runs/a\ncrystals:\n  cif_folders: [cif, /abs/cif]")
        config = load(text)
        assert config.run.folder == tmp_path.resolve().parent / "runs" / "a"
        assert config.crystals.cif_folders == (tmp_path.resolve() / "cif", Path("/abs/cif"))

    def test_of_an_override_to_the_current_folder(
        self, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here = tmp_path / "here"
        here.mkdir()
        monkeypatch.chdir(here)
        config = load(MINIMAL, "run.folder=x", "crystals.cif_folders=[y, /z]")
        assert config.run.folder == here.resolve() / "x"
        assert config.crystals.cif_folders == (here.resolve() / "y", Path("/z"))

    def test_home(self, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", "/home/someone")
        assert load(replaced("folder: out", "folder: ~/runs")).run.folder == Path("/home/someone/runs")

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            ("$SCRATCH/x", "variables"),
            ("a/${USER}", "variables"),
            ("''", "empty"),
            ("~nobody-here-1/x", "no such user"),
        ],
    )
    def test_refused(self, load: Load, value: str, words: str) -> None:
        problem = only_problem(load, replaced("folder: out", f"folder: {value}"))
        assert problem.key == "run.folder"
        assert words in problem.found

    def test_a_bad_path_can_be_overridden(self, load: Load) -> None:
        text = replaced("folder: out", "folder: $SCRATCH/x")
        assert load(text, "run.folder=/data/x").run.folder == Path("/data/x")


class TestOverrides:
    def test_values_are_yaml(self, load: Load) -> None:
        overrides = ("train.lr=1e-3", "scan.positions=[4, 6]", "train.augment=false", "detector.dose_e_per_a2=1e4")
        config = load(MINIMAL, *overrides, "simulation.engine=abtem")
        assert config.train.lr == 1e-3
        assert config.scan.positions == (4, 6)
        assert config.train.augment is False
        assert config.detector.dose_e_per_a2 == 1e4
        assert config.simulation.engine == "abtem"

    def test_null_and_later_ones_win(self, load: Load) -> None:
        config = load(MINIMAL, "detector.dose_e_per_a2=5", "train.lr=1", "detector.dose_e_per_a2=null", "train.lr=2.0")
        assert config.detector.dose_e_per_a2 is None
        assert config.train.lr == 2.0

    def test_a_section_that_the_file_leaves_out(self, load: Load) -> None:
        assert load(MINIMAL, "report.fields_shown=3").report.fields_shown == 3
        assert load(MINIMAL + "report:\n", "report.fields_shown=3").report.fields_shown == 3

    def test_a_whole_section(self, load: Load) -> None:
        config = load(MINIMAL, "network={name: fc_densenet, growth: 256, kernel: 5}")
        assert config.network.name == "fc_densenet"
        assert config.network.growth == 256

    @pytest.mark.parametrize(
        ("override", "key", "found", "nearest"),
        [
            ("train.lrr=1", "train.lrr", "unknown key 'lrr'", "train.lr"),
            ("lr=1", "lr", "unknown key", "train.lr"),
            ("optimizer.lr=1", "optimizer.lr", "unknown key 'optimizer'", "train.optimizer"),
            ("network.back_projection.pixel=1", "network.back_projection.pixel", "unknown key", "…pixel_angstrom"),
            ("network.growth=1", "network.growth", "unknown key", ""),
            ("train.lr.x=1", "train.lr.x", "inside train.lr", "train.lr"),
            ("scan.positions.0=4", "scan.positions.0", "inside scan.positions", "scan.positions"),
            ("train.lr=fast", "train.lr", 'text "fast"', ""),
            ("train.steps=1.5", "train.steps", "1.5", ""),
            ("train.lr=", "train.lr", "nothing", ""),
            ("scan.positions=[4,4", "scan.positions", "flow sequence", ""),
            ("train.lr=!!float 1", "train.lr", "tag", ""),
            ("microscope.energy_kev=300000", "microscope.energy_kev", "300000", ""),
            ("run.folder=$X", "run.folder", "variables", ""),
            ("train.lr", "", 'text "train.lr"', ""),
            ("=3", "", 'text "=3"', ""),
            ("train..lr=3", "", 'text "train..lr=3"', ""),
        ],
    )
    def test_mistakes(self, load: Load, override: str, key: str, found: str, nearest: str) -> None:
        problem = only_problem(load, MINIMAL, override)
        assert problem.key == key
        assert problem.place.startswith("--set")
        assert found in problem.found
        assert problem.nearest == nearest.replace("…", "network.back_projection.")

    def test_keys_of_the_file_that_no_longer_fit(self, load: Load) -> None:
        problem = only_problem(load, MINIMAL, "network.name=fc_densenet")
        assert problem.key == "network.back_projection"
        assert problem.place.endswith(f":{line_of(MINIMAL, '  back_projection')}")

    def test_an_override_mends_a_mistake_of_the_file(self, load: Load) -> None:
        assert load(replaced("steps: 10", "steps: many"), "train.steps=7").train.steps == 7

    def test_mistakes_of_file_and_overrides_together(self, load: Load) -> None:
        problems = problems_of(load, replaced("steps: 10", "steps: many"), "train.lr=-1", "scan.step=3")
        assert {problem.key for problem in problems} == {"train.steps", "train.lr", "scan.step"}
