"""How requests travel to rank 0 and its answer back: compact JSON, which a person can read in a trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from stemdl.comm.items import Item, TensorKey


def encode_requests(items: Sequence[Item]) -> bytes:
    """Groups that have become ready on a rank, each with its tensors; nothing at all for none."""
    if not items:
        return b""
    return json.dumps([[item.name, item.wire, item.tensors] for item in items], separators=(",", ":")).encode()


def decode_requests(payload: bytes) -> list[Item]:
    """What `encode_requests` wrote."""
    if not payload:
        return []
    return [
        Item(name, wire, tuple(TensorKey(tensor, dtype, tuple(shape)) for tensor, dtype, shape in tensors))
        for name, wire, tensors in json.loads(payload)
    ]


@dataclass(frozen=True)
class Answer:
    """Rank 0 to all: names of groups to reduce, in this order; or what is wrong, which ends the job."""

    ready: tuple[str, ...] = ()
    error: str = ""


def encode_answer(answer: Answer) -> bytes:
    """An answer as bytes; nothing at all where nothing is ready."""
    if not answer.ready and not answer.error:
        return b""
    return json.dumps([answer.ready, answer.error], separators=(",", ":")).encode()


def decode_answer(payload: bytes) -> Answer:
    """What `encode_answer` wrote."""
    if not payload:
        return Answer()
    ready, error = json.loads(payload)
    return Answer(tuple(ready), error)
