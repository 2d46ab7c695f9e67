"""What the tests of the maker share."""

from __future__ import annotations

import json
from collections.abc import Callable
from queue import SimpleQueue

import pytest

import data_gen.sharing.maker
from data_gen.sample import make_sample
from data_gen.sharing.maker import Maker
from data_gen.sharing.messages import (
    AllSealed,
    Assign,
    Begun,
    Failure,
    FromMaker,
    ItemKey,
    Made,
    PutBack,
    Sealed,
    Stop,
    Task,
    ToMaker,
    Want,
)
from data_gen.sharing.vault import Berth
from data_gen.worklist import parts
from stemdl.config import Config, stage_hash
from stemdl.shards import ShardSet


class Script:
    """The coordinator's side: an answer to each Want, then Stop; everything that was said."""

    def __init__(self, *answers: ToMaker) -> None:
        self.inbox: SimpleQueue[ToMaker] = SimpleQueue()
        self.told: list[FromMaker] = []
        self.answers = list(answers)
        self.stop: Callable[[float], None] = lambda grace_s: None

    def tell(self, message: FromMaker) -> None:
        """Remember it; a Want is answered with all answers up to the next items."""
        self.told.append(message)
        if isinstance(message, Want | AllSealed):
            self.inbox.put(self.answers.pop(0) if self.answers else Stop(0.0))

    def on_stop(self, call: Callable[[float], None]) -> None:
        """Remember it."""
        self.stop = call

    def say_stop(self, grace_s: float) -> None:
        """As the thread that listens does."""
        self.stop(grace_s)
        self.inbox.put(Stop(grace_s))

    def of(self, *kinds: type) -> list[FromMaker]:
        """What was said of these kinds."""
        return [message for message in self.told if isinstance(message, kinds)]


def key(item: int) -> ItemKey:
    return "train", item


def assign(config: Config, *items: int, estimated_s: float = 5.0) -> Assign:
    part = parts(config)[0][0]
    return Assign(tuple(Task(part, item, estimated_s).alone() for item in items))


def work(config: Config, script: Script, number: int = 3) -> Script:
    Maker(config, Berth(number, 4, number, 4), script, stage_hash(config, "simulate")).run()
    return script


def order(script: Script) -> list[object]:
    """What was said, in short."""
    names = {Begun: "begun", Made: "made", Failure: "failed", PutBack: "put back"}
    short: list[object] = []
    for message in script.told:
        if isinstance(message, Begun | Made | Failure | PutBack):
            short.append((names[type(message)], message.key[1]))
        elif isinstance(message, Sealed):
            short.append(("sealed", *(item for _, item in message.keys)))
        else:
            short.append(type(message).__name__)
    return short


def sealed(config: Config) -> list[int]:
    folder = config.run.folder / "shards" / "train"
    if not (folder / "manifest.jsonl").exists():
        return []
    with ShardSet(folder, verify="hash") as shards:
        assert not shards.duplicates
        return sorted(shards.items)


def events(config: Config, number: int = 3) -> list[dict[str, object]]:
    path = config.run.folder / "log" / f"simulate-rank-{number:05d}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def instead(monkeypatch: pytest.MonkeyPatch, item: int, act: Callable[[], object]) -> None:
    """Do something else in place of one item."""

    def changed(config: Config, part: object, number: int, engine: object) -> object:
        if number == item:
            done = act()
            if done is not None:
                return done
        return make_sample(config, part, number, engine)  # type: ignore[arg-type]

    monkeypatch.setattr(data_gen.sharing.maker, "make_sample", changed)
