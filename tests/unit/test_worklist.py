"""The work list: which crystals, which part, how thick, what is left; what a user hears whose crystals do not do."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import data_gen.worklist
from data_gen.scattering import UnknownElement, scattering_factor
from data_gen.worklist import (
    CrystalSelectionError,
    draw_thickness,
    items_left,
    nearest_names,
    parts,
    select_crystals,
    thickness_in_slices,
)
from stemdl.config import Config
from stemdl.errors import UserError
from stemdl.shards import Sample, ShardAxes, ShardWriter
from tests.small_run import small_config, write_cif


def names(config: Config) -> list[str]:
    return [crystal.name for crystal in select_crystals(config)[0]]


def message(config: Config) -> str:
    with pytest.raises(CrystalSelectionError) as error:
        parts(config)
    assert isinstance(error.value, UserError)
    return str(error.value)


def test_include_and_exclude_choose_by_name(tmp_path: Path) -> None:
    every = ["cif:al", "cif:cscl", "cif:cu", "cif:fe-bcc", "cif:fe-fcc"]
    assert names(small_config(tmp_path)) == every
    assert names(small_config(tmp_path, "crystals.include=['cif:cu', 'cif:al']")) == ["cif:al", "cif:cu"]
    assert names(small_config(tmp_path, "crystals.exclude=['cif:cu']")) == [name for name in every if name != "cif:cu"]


@pytest.mark.parametrize("key", ["include", "exclude"])
def test_an_unknown_name_is_an_error_with_the_nearest_names(tmp_path: Path, key: str) -> None:
    said = message(small_config(tmp_path, f"crystals.{key}=['cif:cu', 'cif:fe-bc', 'nothing-like-it']"))
    assert f"crystals.{key}: no crystal is called 'cif:fe-bc' (there are 5); near it are cif:fe-bcc" in said
    assert "'nothing-like-it' (there are 5)" in said
    assert "'cif:cu'" not in said


def test_the_nearest_names_are_those_of_the_formula_first() -> None:
    known = ["Si-diamond", "SiC-zincblende", "Sn-tetragonal", "Al-fcc"]
    assert nearest_names("si", known)[0] == "Si-diamond"
    assert nearest_names("Si-dimond", known)[0] == "Si-diamond"
    assert nearest_names("xyz", known) == []


def test_missing_and_empty_cif_folders_name_the_key(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    shutil.rmtree(tmp_path / "cif")
    assert message(config).startswith("crystals.cif_folders: ")
    assert str(tmp_path / "cif") in message(config)
    (tmp_path / "cif").mkdir()
    assert "holds no file that ends in .cif" in message(config)
    (tmp_path / "cif" / "broken.cif").write_text("no crystal")
    assert message(config).startswith("crystals.cif_folders: no crystal to simulate: cif:broken: ")


def test_a_broken_file_is_refused_with_the_reason_and_the_rest_is_used(tmp_path: Path) -> None:
    small_config(tmp_path)
    write_cif(tmp_path / "cif", "crowded", [4.0] * 3, [("Cu", 0.0, 0.0, 0.0), ("Cu", 0.05, 0.0, 0.0)])
    crystals, refused = select_crystals(small_config(tmp_path))
    assert len(crystals) == 5
    assert [bad.name for bad in refused] == ["cif:crowded"]
    assert "atoms overlap" in refused[0].reason
    excluded = small_config(tmp_path, "crystals.exclude=['cif:crowded']")
    assert select_crystals(excluded)[1] == []
    wanted = small_config(tmp_path, "crystals.include=['cif:crowded', 'cif:cu', 'cif:al']")
    assert "crystals.include: cif:crowded is refused: crowded.cif: atoms overlap" in message(wanted)


def test_crystals_with_an_element_that_the_table_lacks_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_iron(number: int, *arguments: object) -> object:
        if number == 26:
            raise UnknownElement("element Fe is not in the kirkland table (102 elements)")
        return scattering_factor(number, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(data_gen.worklist, "scattering_factor", without_iron)
    (train, held_out), refused = parts(small_config(tmp_path))
    assert [bad.name for bad in refused] == ["cif:fe-bcc", "cif:fe-fcc"]
    assert "element Fe is not in the kirkland table" in refused[0].reason
    assert sorted(crystal.name for crystal in train.crystals + held_out.crystals) == ["cif:al", "cif:cscl", "cif:cu"]
    only_two = small_config(tmp_path, "crystals.include=['cif:cu', 'cif:fe-bcc']")
    assert "1 crystals of 1 materials are left (1 refused: cif:fe-bcc (element Fe" in message(only_two)


def test_no_material_is_on_both_sides_whatever_the_seed_and_fraction(tmp_path: Path) -> None:
    sides = []
    for seed in range(12):
        fraction = (0.01, 0.4, 0.9)[seed % 3]
        config = small_config(tmp_path, f"run.seed={seed}", f"crystals.held_out_fraction={fraction}")
        (train, held_out), refused = parts(config)
        assert refused == []
        formulas = [{crystal.formula for crystal in part.crystals} for part in (train, held_out)]
        assert not formulas[0] & formulas[1]
        assert formulas[0] | formulas[1] == {"Cu", "Al", "Fe", "CsCl"}
        assert all(formulas)
        sides.append(tuple(sorted(formulas[1])))
    assert len(set(sides)) > 3, "the seed decides which materials are held out"


def test_one_material_cannot_be_split(tmp_path: Path) -> None:
    said = message(small_config(tmp_path, "crystals.include=['cif:fe-bcc', 'cif:fe-fcc']"))
    assert "2 crystals of 1 materials are left (0 refused); at least 2 materials are needed" in said
    assert "crystals.include" in said


def test_crystals_take_turns_in_an_order_of_the_seed(tmp_path: Path) -> None:
    (train, _), _ = parts(small_config(tmp_path, "crystals.held_out_fraction=0.01"))
    counts = Counter(train.crystal_of(item).name for item in range(11))
    assert max(counts.values()) - min(counts.values()) <= 1
    assert len(counts) == len(train.crystals)
    orders = set()
    for seed in range(6):
        config = small_config(tmp_path, f"run.seed={seed}", "crystals.exclude=['cif:cscl', 'cif:fe-fcc']")
        orders.add(tuple(crystal.name for crystal in parts(config)[0][0].crystals))
    assert any(list(order) != sorted(order) for order in orders)


def test_every_material_has_equally_many_fields_where_that_is_asked_for(tmp_path: Path) -> None:
    """Iron has two crystals, the three other materials one: by crystals iron would have twice as many fields."""
    overrides = ("crystals.held_out_fraction=0.01", "crystals.balance=materials")
    (train, _), _ = parts(small_config(tmp_path, *overrides))
    crystals = [train.crystal_of(item) for item in range(40)]
    materials = Counter(crystal.formula for crystal in crystals)
    assert len(materials) == 3
    assert max(materials.values()) - min(materials.values()) <= 1
    names = Counter(crystal.name for crystal in crystals if crystal.formula == "Fe")
    assert set(names) == {"cif:fe-bcc", "cif:fe-fcc"}
    assert max(names.values()) - min(names.values()) <= 1
    assert [crystal.formula for crystal in crystals[:3]] == [crystal.formula for crystal in crystals[3:6]]
    assert train.crystal_of(123_456_789) in train.crystals
    iron = [crystal for crystal in train.crystals if crystal.formula == "Fe"]
    other = next(crystal for crystal in train.crystals if crystal.formula != "Fe")
    pair = replace(train, crystals=(*iron, other))
    turns = [pair.crystal_of(item).name for item in range(4)]
    assert turns == [iron[0].name, other.name, iron[1].name, other.name], "an even number of materials too"
    (again, _), _ = parts(small_config(tmp_path, *overrides))
    assert [again.crystal_of(item).name for item in range(40)] == [crystal.name for crystal in crystals]
    (plain, _), _ = parts(small_config(tmp_path, overrides[0]))
    assert [crystal.name for crystal in plain.crystals] == [crystal.name for crystal in train.crystals]
    every = plain.crystals
    assert [plain.crystal_of(item) for item in range(9)] == [every[item % len(every)] for item in range(9)]


def test_thicknesses_are_whole_slices_inside_the_range_each_as_likely_as_another(tmp_path: Path) -> None:
    config = small_config(tmp_path, "specimen.thickness_angstrom=[7.0, 15.0]")
    assert thickness_in_slices(config) == (4, 7)
    (train, held_out), _ = parts(config)
    drawn = np.array([draw_thickness(config, train, item) for item in range(2000)])
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [8.0, 10.0, 12.0, 14.0]
    assert counts.min() > 440, "of 500 each, five standard deviations of 19 below would be 403"
    assert drawn[:50].tolist() == [draw_thickness(config, train, item) for item in range(50)]
    assert drawn[:50].tolist() != [draw_thickness(config, held_out, item) for item in range(50)]


@pytest.mark.parametrize(
    ("span", "slab", "expected"),
    [
        ("[20.0, 20.0]", 2.0, (10, 10)),
        ("[2.1, 2.1]", 0.7, (3, 3)),  # 2.1 / 0.7 is a little below 3
        ("[20.5, 21.5]", 2.0, (10, 11)),  # no whole slices inside: the ends rounded
        ("[0.3, 0.6]", 2.0, (1, 1)),
    ],
)
def test_a_range_without_whole_slices_is_rounded(
    tmp_path: Path, span: str, slab: float, expected: tuple[int, int]
) -> None:
    overrides = [f"specimen.thickness_angstrom={span}", f"simulation.slice_angstrom={slab}"]
    assert thickness_in_slices(small_config(tmp_path, *overrides)) == expected


def test_items_left_are_those_that_no_sealed_shard_of_this_configuration_holds(tmp_path: Path) -> None:
    (train, _), _ = parts(small_config(tmp_path))
    folder = tmp_path / "shards"
    assert items_left(train, folder, "this") == list(range(9))
    with ShardWriter(folder, rank=0, axes=ShardAxes(2.0, 0.1, 0.5), config_hash="this", samples_per_shard=2) as writer:
        for item in (1, 4, 7):
            amplitude, provenance = np.full((1, 1, 4, 4), 0.1), {"crystal": "x", "formula": "X"}
            writer.add(Sample(item, amplitude, np.ones((4, 4)), {"thickness_angstrom": 1.0}, {**provenance}))
    assert items_left(train, folder, "this") == [0, 2, 3, 5, 6, 8]
    assert items_left(train, folder, "another") == list(range(9))
