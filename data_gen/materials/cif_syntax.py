"""The syntax of crystallographic information files: text -> blocks of named columns of strings.

Grammar: Hall, Allen and Brown, Acta Cryst. A47 (1991) 655, CIF version 1.1. ASE's reader drops loop rows of the wrong
length with a mere warning and stops at a prime in a label (O1'); here the first is an error and the second a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<comment>\#.*)
    | '(?P<single>(?:[^']|'(?=\S))*)'(?=\s|$)
    | "(?P<double>(?:[^"]|"(?=\S))*)"(?=\s|$)
    | (?P<bare>\S+)""",
    re.VERBOSE,
)


class CifSyntaxError(ValueError):
    """The text is no CIF; the message says what was found in which line."""


class Block(NamedTuple):
    """One data block: every tag in lower case with its values (a single item has one)."""

    name: str
    columns: dict[str, list[str]]


class _Token(NamedTuple):
    text: str
    line: int
    bare: bool  # not quoted: may be a tag or a keyword

    @property
    def keyword(self) -> str:
        """ "data", "loop", "tag", "reserved" or "" for a value."""
        lower = self.text.lower()
        if not self.bare:
            return ""
        if lower.startswith("_"):
            return "tag"
        if lower.startswith("data_"):
            return "data"
        if lower == "loop_":
            return "loop"
        return "reserved" if lower.startswith("save_") or lower in ("global_", "stop_") else ""


def parse_blocks(text: str) -> list[Block]:
    """Parse a CIF into its data blocks.

    Raises:
        CifSyntaxError: values outside a block, an unclosed quotation, a tag without value or given twice, a loop whose
            number of values is no multiple of its columns.
    """
    tokens = list(_tokens(text))
    blocks: list[Block] = []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        if token.keyword == "data":
            blocks.append(Block(token.text[5:], {}))
            position += 1
        elif not blocks:
            raise CifSyntaxError(f"line {token.line}: {token.text[:40]!r} stands before the first data_ block")
        elif token.keyword == "loop":
            position = _read_loop(tokens, position, blocks[-1])
        elif token.keyword == "tag":
            if position + 1 == len(tokens) or tokens[position + 1].keyword:
                raise CifSyntaxError(f"line {token.line}: {token.text} has no value")
            _store(blocks[-1], token, [tokens[position + 1].text])
            position += 2
        else:
            raise CifSyntaxError(f"line {token.line}: {token.text[:40]!r} belongs to no tag")
    return blocks


def _read_loop(tokens: list[_Token], position: int, block: Block) -> int:
    """Store the columns of the loop that starts at ``position``; return where it ends."""
    start = position + 1
    end_of_tags = _end_of(tokens, start, "tag")
    end = _end_of(tokens, end_of_tags, "")
    tags, values = tokens[start:end_of_tags], tokens[end_of_tags:end]
    line = tokens[position].line
    if not tags:
        raise CifSyntaxError(f"line {line}: loop_ without tags")
    if len(values) % len(tags):
        raise CifSyntaxError(
            f"line {line}: the loop of {len(tags)} columns from {tags[0].text} has {len(values)} values, no whole rows"
        )
    for column, tag in enumerate(tags):
        _store(block, tag, [value.text for value in values[column :: len(tags)]])
    return end


def _end_of(tokens: list[_Token], position: int, keyword: str) -> int:
    """First index from ``position`` on whose token is of another kind."""
    while position < len(tokens) and tokens[position].keyword == keyword:
        position += 1
    return position


def _store(block: Block, tag: _Token, values: list[str]) -> None:
    name = tag.text.lower()
    if name in block.columns:
        raise CifSyntaxError(f"line {tag.line}: {tag.text} is given twice in data_{block.name}")
    block.columns[name] = values


def _tokens(text: str) -> Iterator[_Token]:
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        if not line.startswith(";"):
            yield from _tokens_of_line(line, number)
            continue
        field = [line[1:]]
        for _, continued in lines:
            if continued.startswith(";"):
                break
            field.append(continued)
        else:
            raise CifSyntaxError(f"line {number}: the text that opens with ; is never closed")
        yield _Token("\n".join(field).strip(), number, bare=False)
        yield from _tokens_of_line(continued[1:], number)


def _tokens_of_line(line: str, number: int) -> Iterator[_Token]:
    for match in _TOKEN.finditer(line):
        kind = match.lastgroup
        if kind == "comment":
            return
        value = match.group(str(kind))
        if kind == "bare" and value[0] in "'\"":
            raise CifSyntaxError(f"line {number}: the quotation {value[:40]} is never closed")
        yield _Token(value, number, bare=kind == "bare")
