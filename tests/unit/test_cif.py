"""Reading CIF files: occupancies, symmetry, and refusals by name with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_gen.materials import BadCrystal, check_crystal, read_cif, read_cif_folder
from data_gen.materials.cif_syntax import CifSyntaxError, parse_blocks

STRUCTURES = Path(__file__).parents[2].parent / "shared" / "data" / "structures"
CELL = {"length_a": "5", "length_b": "5", "length_c": "5", "angle_alpha": "90", "angle_beta": "90", "angle_gamma": "90"}

DAMAGE = [b"", b"'", b"/0", b";\n", b"1e999", b"loop_\n"]


def cif(
    atoms: str = "Na1 Na 0 0 0 1\nCl1 Cl 0.5 0.5 0.5 1",
    symmetry: str = "",
    columns: Sequence[str] = ("label", "type_symbol", "fract_x", "fract_y", "fract_z", "occupancy"),
    **cell: str,
) -> str:
    """A small CIF; a cell entry of "" is left out."""
    entries = "".join(f"_cell_{tag} {value}\n" for tag, value in {**CELL, **cell}.items() if value)
    return f"data_x\n{entries}{symmetry}\nloop_\n" + "".join(f"_atom_site_{c}\n" for c in columns) + atoms + "\n"


def read(tmp_path: Path, text: str | bytes, name: str = "x.cif") -> tuple[str, dict[int, float], int]:
    """Formula, composition and number of sites of the text as a file."""
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    crystal = read_cif(path)
    check_crystal(crystal)
    return crystal.formula, crystal.composition(), len(crystal.species)


def reason(tmp_path: Path, text: str | bytes) -> str:
    """Why the text is refused; the name and the file must be in the message."""
    with pytest.raises(BadCrystal) as error:
        read(tmp_path, text)
    assert error.value.name == "cif:x"
    assert error.value.reason.startswith("x.cif: ")
    return error.value.reason


def test_plain_structure_without_symmetry_says_so(tmp_path: Path) -> None:
    assert read(tmp_path, cif()) == ("NaCl", {11: 1.0, 17: 1.0}, 2)
    assert "read as P 1" in read_cif(tmp_path / "x.cif").source


def test_species_that_share_a_position_share_the_site_and_leave_the_vacancy(tmp_path: Path) -> None:
    atoms = "Ge1 Ge 0.5 0.5 0.5 0.40\nSb1 Sb 0.5 0.5 0.5 0.40\nTe1 Te 0 0 0 1.0"
    text = cif(atoms, "_space_group_IT_number 225", length_a="6.02", length_b="6.02", length_c="6.02")
    formula, composition, sites = read(tmp_path, text)
    assert formula == "Ge2Sb2Te5"
    assert sites == 8
    assert composition == pytest.approx({32: 1.6, 51: 1.6, 52: 4.0})
    crystal = read_cif(tmp_path / "x.cif")
    assert set(crystal.species) == {((32, 0.4), (51, 0.4)), ((52, 1.0),)}


def test_two_valences_of_one_element_add_up(tmp_path: Path) -> None:
    atoms = "FeA Fe2+ 0 0 0 0.5\nFeB Fe3+ 0 0 0 0.5\nO1 O2- 0.5 0.5 0.5 1"
    assert read(tmp_path, cif(atoms)) == ("FeO", {26: 1.0, 8: 1.0}, 2)


def test_listed_operations_generate_the_cell(tmp_path: Path) -> None:
    symmetry = "loop_\n_symmetry_equiv_pos_as_xyz\n'x,y,z'\n'1/2+x, 1/2+y, z'\n'x+1/2,y,z+1/2'\n\"x,y+1/2,z+1/2\"\n"
    assert read(tmp_path, cif(symmetry=symmetry)) == ("NaCl", {11: 4.0, 17: 4.0}, 8)


def test_rounded_thirds_are_one_site(tmp_path: Path) -> None:
    atoms = "Mg1 Mg 0.3333 0.6667 0.25 1"
    text = cif(
        atoms, "_symmetry_Int_Tables_number 194", length_a="3.21", length_b="3.21", length_c="5.21", angle_gamma="120"
    )
    assert read(tmp_path, text) == ("Mg", {12: 2.0}, 2)


def test_uncertainties_labels_charges_and_deuterium(tmp_path: Path) -> None:
    columns = ("label", "fract_x", "fract_y", "fract_z")
    assert read(tmp_path, cif("Na1 0.000(3) 0 0\nCl1' 0.5 .5(12) 5.0E-1", columns=columns))[0] == "NaCl"
    assert read(tmp_path, cif("O1 O2- 0 0 0 1\nD1 D 0.2 0 0 1\nD2 D1+ 0 0.2 0 ?"))[1] == {8: 1.0, 1: 2.0}


def test_comments_text_fields_and_other_loops_are_skipped(tmp_path: Path) -> None:
    extra = "_note\n;\nloop_ data_ 'unclosed\n;\n_quoted 'it''s a # name'\nloop_\n_a\n_b\n1 2 # rest\n3\n4\n"
    assert read(tmp_path, "# head\n" + cif(symmetry=extra))[0] == "NaCl"


@pytest.mark.parametrize(
    ("symmetry", "sites"),
    [
        ("_symmetry_space_group_name_H-M 'F m -3 m'", 8),
        ("_space_group_name_H-M_alt 'Fm-3m'", 8),
        ("_space_group_IT_number 225\n_symmetry_space_group_name_H-M 'F m -3 m'", 8),
        ("_space_group_IT_number '221'", 2),
    ],
)
def test_space_groups_by_name_or_number(tmp_path: Path, symmetry: str, sites: int) -> None:
    assert read(tmp_path, cif(symmetry=symmetry))[2] == sites


def test_settings_are_told_apart(tmp_path: Path) -> None:
    """Origin by suffix, monoclinic cell choice by symbol, rhombohedral axes by the cell."""
    atoms = "Si1 Si 0.125 0.125 0.125 1"
    cubic = {"length_a": "5.43", "length_b": "5.43", "length_c": "5.43"}
    assert read(tmp_path, cif(atoms, "_symmetry_space_group_name_H-M 'F d -3 m :2'", **cubic))[2] == 8
    assert read(tmp_path, cif("Si1 Si 0 0 0 1", "_symmetry_space_group_name_H-M 'F d -3 m :1'", **cubic))[2] == 8
    hexagonal = {"length_c": "12", "angle_gamma": "120"}
    assert read(tmp_path, cif("Bi1 Bi 0 0 0.234 1", "_space_group_IT_number 166", **hexagonal))[2] == 6
    rhombohedral = {"angle_alpha": "57", "angle_beta": "57", "angle_gamma": "57"}
    assert read(tmp_path, cif("Bi1 Bi 0.234 0.234 0.234 1", "_space_group_IT_number 166", **rhombohedral))[2] == 2
    monoclinic = {"angle_beta": "99", "length_b": "6"}
    general = "Zr1 Zr 0.1 0.2 0.3 1"
    assert read(tmp_path, cif(general, "_symmetry_space_group_name_H-M 'P 1 21/n 1'", **monoclinic))[2] == 4
    path = tmp_path / "x.cif"
    first = read_cif(path).fractional
    read(tmp_path, cif(general, "_symmetry_space_group_name_H-M 'P 1 21/c 1'", **monoclinic))
    assert not np.allclose(first, read_cif(path).fractional)


@pytest.mark.parametrize(
    ("symmetry", "said"),
    [
        ("_space_group_IT_number 227", "two settings or origins"),
        ("_space_group_IT_number 62\n_symmetry_space_group_name_H-M 'P b n m'", "not a tabulated setting"),
        ("_space_group_IT_number 231", "no space group 231"),
        ("_symmetry_space_group_name_H-M 'Q 4'", "'Q 4' is unknown"),
        ("_symmetry_space_group_name_Hall '-P 2yc'", "Hall symbol"),
        ("loop_\n_symmetry_equiv_pos_as_xyz\n'x,y,z'\n'x,y'\n", "2 parts instead of 3"),
        ("loop_\n_symmetry_equiv_pos_as_xyz\n" + "'x,y,z'\n" * 193, "193 symmetry operations"),
    ],
)
def test_unclear_symmetry_is_refused(tmp_path: Path, symmetry: str, said: str) -> None:
    assert said in reason(tmp_path, cif(symmetry=symmetry))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("  \n\n", "empty"),
        (b"\x89HDF\r\n\x1a\n\0\0\0", "binary"),
        ("data_x\n_cell_length_a 5\n", "lists no atoms"),
        ("data_x\nloop_\n_atom_site_Cartn_x\n0\n", "fractional coordinates are needed"),
        (cif(length_c="0"), "cell vector c has zero length; a slab needs a cell height"),
        (cif(length_b="-5"), "negative length"),
        (cif(length_a="nan"), "_cell_length_a is 'nan', not a number"),
        (cif(length_a="?"), "not a number"),
        (cif(angle_beta=""), "_cell_angle_beta is missing"),
        (cif(angle_alpha="10", angle_beta="20", angle_gamma="150"), "span no volume"),
        (cif(length_a="0.01"), "thin"),
        (cif("Na1 Na nan 0 0 1"), "_atom_site_fract_x of Na1 is 'nan'"),
        (cif("Na1 Na ? 0 0 1"), "_atom_site_fract_x of Na1 is '?'"),
        (cif("Q1 Qq 0 0 0 1"), "unknown element 'Qq'"),
        (cif("X1 Rf 0 0 0 1"), "unknown element 'Rf'"),
        (cif("Na1 Na 0 0 0 0"), "occupancy 0, outside (0, 1]"),
        (cif("Na1 Na 0 0 0 1.5"), "occupancy 1.5"),
        (cif("Na1 Na 0 0 0 1\nNa2 Na 0 0 1 1"), "Na1, Na2 lie at one position and their occupancies sum to 2"),
        (cif("Na1 Na 0 0 0 1\nCl1 Cl 0.05 0 0 1"), "atoms overlap: Na (site 0) and Cl (site 1) are 0.250 Å apart"),
        (cif("Na1 Na 0.02 0 0 1\nCl1 Cl 0.98 0 0 1"), "atoms overlap"),
        (cif("Na1 Na 0 0 0 1\nCl1 Cl 0.5 0.5 0.5"), "11 values, no whole rows"),
        (cif(columns=("label", "symbol", "fract_x", "fract_y", "z", "occupancy")), "_atom_site_fract_z is missing"),
        (cif("0 0 0", columns=("fract_x", "fract_y", "fract_z")), "which atoms these are"),
        (cif("1 0 0 0", columns=("label", "fract_x", "fract_y", "fract_z")), "names no element"),
        (cif("", columns=("label", "fract_x", "fract_y", "fract_z")), "atom list is empty"),
        (cif() + cif().replace("data_x", "data_y"), "2 structures (data_x, data_y)"),
        (cif() + "loop_\n_atom_site_type_symbol\nNa\n", "_atom_site_type_symbol is given twice"),
        (cif(symmetry="_title 'never closed\n"), "quotation"),
        (cif() + "_text\n;\nnever closed", "never closed"),
        ("just prose, no CIF\n", "before the first data_ block"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_with_the_reason(tmp_path: Path, text: str | bytes, said: str) -> None:
    assert said in reason(tmp_path, text)


def test_a_missing_file_and_an_oversized_one_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadCrystal, match=r"cif:none: none\.cif: .*No such file"):
        read_cif(tmp_path / "none.cif")
    monkeypatch.setattr("data_gen.materials.cif.LARGEST_FILE_BYTES", 100)
    assert "more than the 100 allowed" in reason(tmp_path, cif())


def test_a_folder_gives_every_file_a_crystal_or_a_reason_in_order(tmp_path: Path) -> None:
    for name, text in {"b.cif": cif(), "a.CIF": cif("Na1 Na 0 0 0 1"), "c.cif": "", "d.cif": cif(length_a="0")}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "notes.txt").write_text("not a structure")
    crystals, refused = read_cif_folder(tmp_path)
    assert [crystal.name for crystal in crystals] == ["cif:a", "cif:b"]
    assert [error.name for error in refused] == ["cif:c", "cif:d"]
    assert "zero length" in str(refused[1])


def test_a_wrong_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="nowhere"):
        read_cif_folder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no file that ends in \.cif"):
        read_cif_folder(tmp_path)


def test_syntax_errors_name_the_line() -> None:
    with pytest.raises(CifSyntaxError, match="line 2: _a has no value"):
        parse_blocks("data_x\n_a\nloop_\n_b\n1\n")
    with pytest.raises(CifSyntaxError, match="line 3: 'stray' belongs to no tag"):
        parse_blocks("data_x\n_a 1\nstray\n")
    with pytest.raises(CifSyntaxError, match="line 2: loop_ without tags"):
        parse_blocks("data_x\nloop_\n1 2\n")
    assert parse_blocks("data_x\n_A 'loop_'\n_b \"data_y\"\n")[0].columns == {"_a": ["loop_"], "_b": ["data_y"]}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_but_never_crashes(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(cif(symmetry="loop_\n_symmetry_equiv_pos_as_xyz\n'x,y,z'\n'-x,1/2+y,-z'\n").encode())
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(content)))
        length = data.draw(st.integers(0, 12))
        content[start : start + length] = data.draw(st.binary(max_size=6) | st.sampled_from(DAMAGE))
    path = tmp_path / "x.cif"
    path.write_bytes(bytes(content))
    try:
        check_crystal(read_cif(path))
    except BadCrystal as error:
        assert error.reason.startswith("x.cif: ")


@pytest.mark.skipif(not STRUCTURES.is_dir(), reason="the shared test structures are not on this machine")
def test_the_shared_structures_are_read_as_published() -> None:
    crystals, refused = read_cif_folder(STRUCTURES)
    assert refused == []
    found = {crystal.name: (crystal.formula, len(crystal.species)) for crystal in crystals}
    assert found == {
        "cif:Si": ("Si", 8),
        "cif:SiO2": ("SiO2", 288),
        "cif:ZrO2": ("ZrO2", 12),
        "cif:graphene_with_si": ("SiC23", 24),
        "cif:gst": ("Ge2Sb2Te5", 8),
        "cif:mvc-9418": ("Fe13Si2Sb2O28", 45),
        "cif:titanate": ("CaTiSiO5", 32),
        "cif:turquoise": ("Al6CuP4H16O28", 55),
    }
    densities = {crystal.name: crystal.mass_density_g_per_cm3() for crystal in crystals}
    assert densities["cif:turquoise"] == pytest.approx(2.927493, rel=1e-3)  # _exptl_crystal_density_diffrn of the file
    assert densities["cif:Si"] == pytest.approx(2.329, rel=1e-3)
