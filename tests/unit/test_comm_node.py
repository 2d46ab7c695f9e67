"""The ranks of a node: meetings, and memory that all of them see."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from stemdl.comm.alone import Alone
from stemdl.comm.control import Control
from stemdl.comm.data import SharedArena
from stemdl.comm.errors import CommError
from stemdl.comm.node import NodeLink, can_share, free_address, listen
from stemdl.comm.node_control import NodeControl

pytestmark = pytest.mark.skipif(not can_share(), reason="shared memory between ranks needs Linux")


def on_node(size: int, work: Callable[[NodeLink], Any], limit_s: float = 30.0) -> list[Any]:
    """What `work` returns or raises on each rank of a node; ranks are threads here, sockets and memory are real."""
    address = free_address()
    listener = listen(address)
    results: list[Any] = [None] * size

    def one(local_rank: int) -> None:
        try:
            link = NodeLink(range(size), local_rank, address, limit_s, listener if local_rank == 0 else None)
            try:
                results[local_rank] = work(link)
            finally:
                link.close()
        except CommError as error:
            results[local_rank] = error

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive(), "a rank hangs"
    return results


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_meeting_combines_the_payloads_of_all(size: int) -> None:
    def work(link: NodeLink) -> bytes:
        first = link.meet("letters", bytes([65 + link.local_rank]), lambda parts: b"".join(parts))
        link.meet("nothing")
        return first

    assert on_node(size, work) == [bytes(range(65, 65 + size))] * size


@pytest.mark.parametrize("size", [1, 3])
def test_bits_are_combined_over_the_node(size: int) -> None:
    def work(link: NodeLink) -> tuple[int, int]:
        flat: Control = Alone()
        control = NodeControl(link, None, flat)
        words = np.array([0b110 << link.local_rank], dtype=np.uint64)
        return int(control.bitwise_and(words)[0]), int(control.bitwise_or(words)[0])

    expected = {1: (0b110, 0b110), 3: (0b000, 0b11110)}[size]
    if size == 3:
        expected = (0b110 & 0b1100 & 0b11000, 0b110 | 0b1100 | 0b11000)
    assert on_node(size, work) == [expected] * size


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_shared_memory_gives_every_rank_the_same_bits_of_the_mean(size: int, dtype: torch.dtype) -> None:
    count, start, stop = 70_001, 64, 70_001

    def values(rank: int) -> torch.Tensor:
        return torch.randn(count, generator=torch.Generator().manual_seed(rank)).to(dtype)

    def work(link: NodeLink) -> torch.Tensor:
        arena = SharedArena(link, None, False, count, dtype)
        for _ in range(3):
            arena.tensor.copy_(values(link.local_rank))
            arena.all_reduce(start, stop, 1 / size, "all")()
        link.meet("the end")
        return arena.tensor.clone()

    results = on_node(size, work)
    total = values(0)
    for rank in range(1, size):
        total.add_(values(rank))
    for rank, result in enumerate(results):
        assert torch.equal(result[start:stop], total.mul(1 / size)[start:stop])
        assert torch.equal(result[:start], values(rank)[:start])


def test_who_comes_for_something_else_is_named_on_all_ranks() -> None:
    def work(link: NodeLink) -> None:
        link.meet("new buffers" if link.local_rank == 2 else "a cycle")

    for error in on_node(3, work):
        assert isinstance(error, CommError)
        assert "rank 2 is at new buffers, rank 0 at a cycle" in str(error)


def test_a_rank_that_is_gone_is_named_at_once() -> None:
    def work(link: NodeLink) -> str:
        if link.local_rank == 1:
            return "left"
        link.meet("a cycle")
        return "met"

    first, second, third = on_node(3, work)
    assert second == "left"
    assert "rank 1 is gone" in str(first)
    assert isinstance(third, CommError)


def test_a_rank_that_does_not_come_is_named_when_time_is_up() -> None:
    done = threading.Event()

    def work(link: NodeLink) -> None:
        if link.local_rank == 1:
            done.wait(30.0)
            return
        try:
            link.meet("a cycle")
        finally:
            done.set()

    assert "rank 1 has not come for 0.3 s" in str(on_node(2, work, limit_s=0.3)[0])


def test_no_memory_is_a_clear_error() -> None:
    error = on_node(1, lambda link: link.share(2**60))[0]
    assert isinstance(error, CommError)
    assert "MiB are free on this node" in str(error)
