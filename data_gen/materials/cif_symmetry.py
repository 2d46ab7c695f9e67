"""The symmetry operations that a CIF asks for: listed, or by the name or number of the space group."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

import numpy as np

from data_gen.materials.symmetry import Operation, parse_operation, space_group_operations

LARGEST_OPERATION_COUNT = 192
"""Operations of F m -3 m and its kin: 48 of the point group times 4 centring translations."""

_OPERATION_TAGS = (
    "_space_group_symop_operation_xyz",
    "_space_group_symop.operation_xyz",
    "_symmetry_equiv_pos_as_xyz",
)
_NUMBER_TAGS = ("_space_group_it_number", "_space_group.it_number", "_symmetry_int_tables_number")
_NAME_TAGS = ("_space_group_name_h-m_alt", "_space_group.name_h-m_alt", "_symmetry_space_group_name_h-m")
_HALL_TAGS = ("_space_group_name_hall", "_space_group.name_hall", "_symmetry_space_group_name_hall")
_RHOMBOHEDRAL = (146, 148, 155, 160, 161, 166, 167)
_ADVICE = "list the operations in _space_group_symop_operation_xyz"


def operations_of(
    columns: Mapping[str, Sequence[str]],
    lengths_angstrom: tuple[float, float, float],
    angles_deg: tuple[float, float, float],
) -> tuple[tuple[Operation, ...], str]:
    """Symmetry operations of a data block, and a note for the record (empty unless something had to be assumed).

    Listed operations count; otherwise the space group is looked up. A group with two origins or settings is refused
    unless the file says which one it means: the wrong one gives a different crystal.

    Args:
        columns: tags in lower case with their values.
        lengths_angstrom: cell edges; with the angles they tell rhombohedral from hexagonal axes.
        angles_deg: cell angles.

    Raises:
        ValueError: operations that cannot be read, or a space group that is unknown or ambiguous.
    """
    listed = _first(columns, _OPERATION_TAGS)
    if len(listed) > LARGEST_OPERATION_COUNT:
        raise ValueError(f"{len(listed)} symmetry operations; no space group has more than {LARGEST_OPERATION_COUNT}")
    if listed:
        return tuple(parse_operation(text) for text in listed), ""
    number, name = _value(columns, _NUMBER_TAGS), _value(columns, _NAME_TAGS)
    if number is None and name is None:
        if _value(columns, _HALL_TAGS) is not None:
            raise ValueError(f"the symmetry is given by a Hall symbol alone; {_ADVICE}")
        return space_group_operations(1), "; no symmetry given, read as P 1"
    if number is not None and not number.isdecimal():
        raise ValueError(f"the space group number is {number!r}")
    group = int(number) if number is not None else _number_of(str(name))
    return space_group_operations(group, _setting(columns, group, name, lengths_angstrom, angles_deg)), ""


def stated_space_group(columns: Mapping[str, Sequence[str]]) -> int:
    """Number of the space group that a data block states, by number or by name; 0 where it states none that is known.

    A label for the record: `operations_of` says which operations count.
    """
    number, name = _value(columns, _NUMBER_TAGS), _value(columns, _NAME_TAGS)
    if number is not None and number.isdecimal():
        return int(number) if 1 <= int(number) <= 230 else 0
    try:
        return 0 if name is None else _number_of(name)
    except ValueError:
        return 0  # a setting that ASE does not tabulate, such as "I 1 2/a 1"; its operations are listed


def _first(columns: Mapping[str, Sequence[str]], tags: Sequence[str]) -> Sequence[str]:
    return next((columns[tag] for tag in tags if tag in columns), ())


def _value(columns: Mapping[str, Sequence[str]], tags: Sequence[str]) -> str | None:
    values = [columns[tag][0] for tag in tags if columns.get(tag)]
    return next((value for value in values if value not in (".", "?", "")), None)


def _setting(
    columns: Mapping[str, Sequence[str]],
    group: int,
    name: str | None,
    lengths: tuple[float, float, float],
    angles: tuple[float, float, float],
) -> int:
    """Which of the one or two tabulated settings of the group the file means."""
    symbols = _symbols(group)
    fitting = [s for s, symbol in symbols.items() if name is None or _plain(name) == _plain(symbol)]
    if not fitting:
        known = ", ".join(sorted({repr(symbol) for symbol in symbols.values()}))
        raise ValueError(f"{name!r} is not a tabulated setting of space group {group} ({known}); {_ADVICE}")
    if len(fitting) == 1:
        return fitting[0]
    if group in _RHOMBOHEDRAL:
        hexagonal = np.allclose(angles, (90, 90, 120), atol=0.1)
        equal = np.ptp(angles) < 0.1 and np.ptp(lengths) < 0.01
        if hexagonal or equal:
            return 1 if hexagonal else 2
    suffix = name.rsplit(":", 1)[-1].strip() if name and ":" in name else None
    choice = suffix or _value(columns, ("_symmetry_space_group_setting",))
    if choice in ("1", "2") and group not in _RHOMBOHEDRAL:
        return int(choice)
    raise ValueError(
        f"space group {group} ({symbols[1]}) has two settings or origins and the file does not say which; {_ADVICE}"
    )


def _symbols(group: int) -> dict[int, str]:
    """Hermann-Mauguin symbol of each tabulated setting of the group."""
    from ase.spacegroup import Spacegroup  # half a second, only for files that list no operations
    from ase.spacegroup.spacegroup import SpacegroupError

    symbols: dict[int, str] = {}
    for setting in (1, 2):
        try:
            symbols[setting] = str(Spacegroup(group, setting).symbol)
        except SpacegroupError:
            continue  # most groups have one setting
    if not symbols:
        raise ValueError(f"there is no space group {group}; 1 to 230 are allowed")
    return symbols


@functools.lru_cache(maxsize=1024)
def _number_of(name: str) -> int:
    from ase.spacegroup import Spacegroup
    from ase.spacegroup.spacegroup import SpacegroupError

    symbol = _plain(name).capitalize()
    for setting in (1, 2):
        try:
            return int(Spacegroup(symbol, setting).no)
        except SpacegroupError:
            continue  # the other setting may carry this symbol
    raise ValueError(f"the space group {name!r} is unknown; {_ADVICE}")


def _plain(name: str) -> str:
    """A symbol without what varies between writers: spaces, origin suffix, the 1s of "P 1 21/c 1"."""
    words = re.sub(r"[_()]", "", name.split(":")[0].strip()).split()
    if len(words) == 4 and words.count("1") == 2 and words[0] != "1":
        words = [word for word in words if word != "1"]
    return "".join(words).lower()
