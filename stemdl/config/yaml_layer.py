"""YAML text to plain data with a line for every key: PyYAML's safe machinery, read more strictly.

Unlike `yaml.safe_load`: `1e-3` is a float; only true and false are bools (yes, on, 010, 1_000, 12:30 stay text, which
strict models refuse); duplicate keys, tags, aliases are refused; text, depth, digits are bounded: no bombs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_CHARACTERS, MAX_DEPTH = 262_144, 16  # a configuration is a page; a list of ten thousand crystals still fits

KeyPath = tuple[str | int, ...]

_FLOAT = r"[-+]?(?=.*[.eE])(?:[0-9]{1,30}\.?[0-9]{0,60}|\.[0-9]{1,60})(?:[eE][-+]?[0-9]{1,4})?"
_SCALARS: dict[str, tuple[str, list[str], Callable[[str], Any]]] = {  # pattern, first characters, conversion
    "null": ("~|null|Null|NULL|", ["~", "n", "N", ""], lambda _: None),
    "bool": ("true|True|TRUE|false|False|FALSE", list("tTfF"), lambda text: text.lower() == "true"),
    "int": ("[-+]?(?:0|[1-9][0-9]{0,29})", list("-+0123456789"), int),
    "float": (_FLOAT, list("-+.0123456789"), float),
}
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")  # and line ends, halves of characters


@dataclass(frozen=True)
class YamlFault:
    """One thing wrong with the text: line (from 1; 0 for the whole), key path, what was found, what is allowed."""

    line: int
    path: KeyPath
    found: str
    allowed: str


@dataclass
class Document:
    """Plain data (dicts, lists, scalars), the line of each key and list item, and all that was wrong."""

    data: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    faults: list[YamlFault] = field(default_factory=list)


class _Loader(yaml.SafeLoader):
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # types-PyYAML leaves it bare
        alias = isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None)
        tag = getattr(event, "tag", None)
        if alias or tag is not None or self.depth >= MAX_DEPTH:
            what = "an anchor or alias (& or *)" if alias else f"the tag {tag!r}" if tag else f"depth over {MAX_DEPTH}"
            raise yaml.MarkedYAMLError(problem=f"found {what}", problem_mark=event.start_mark)
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        return super().represent_sequence(tag, sequence, flow_style=True)  # [1, 2] on one line


for _class in (_Loader, _Dumper):  # one table both ways: text that looks like a number is quoted when written
    _class.yaml_implicit_resolvers = {}
    for _tag, (_pattern, _first, _) in _SCALARS.items():
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)


def parse_yaml(text: str) -> Document:
    """Parse one YAML document; every fault is collected in the result, none is raised."""
    if len(text) > MAX_CHARACTERS:
        return Document(faults=[YamlFault(0, (), f"{len(text)} characters", f"at most {MAX_CHARACTERS}")])
    document = Document()
    try:
        node = yaml.compose(text, Loader=_Loader)
        document.data = None if node is None else _plain(node, (), document)
    except yaml.reader.ReaderError as error:  # a character that YAML forbids
        found = f"the character U+{error.character:04X}"
        document.faults.append(YamlFault(text.count("\n", 0, error.position) + 1, (), found, "printable text"))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        allowed = "spaces for indentation, no tabs" if "\\t" in str(error.problem) else "plain YAML, `key: value`"
        document.faults.append(YamlFault(line, (), ": ".join(filter(None, (error.context, error.problem))), allowed))
    return document


def dump_yaml(data: Any) -> str:
    """Write plain data as YAML that `parse_yaml` reads to equal data, keys in the order given."""
    return str(
        yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110)
    )


def _plain(node: yaml.Node, path: KeyPath, document: Document) -> Any:
    line = document.lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*path, index), document) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
            if key == "?" or key in result:
                first = document.lines.get((*path, key), line)
                found = "a key that is no name" if key == "?" else f"{key!r} again, after line {first}"
                document.faults.append(YamlFault(line, (*path, key), found, "each key once, a plain name"))
                continue
            document.lines[(*path, key)] = line
            result[key] = _plain(value_node, (*path, key), document)
        return result
    if _CONTROL.search(node.value):
        document.faults.append(YamlFault(line, path, f"a control character in {node.value!r}", "printable text"))
    return _SCALARS.get(node.tag.rpartition(":")[2], ("", [], str))[2](node.value)
