"""The communication model: what a training step costs on so many ranks with each way to agree and to add up.

α-β-γ: a message costs α + bytes/β, and each request costs rank 0 γ. The step is played through event by event:
gradients become ready over the backward pass; a background thread agrees in cycles (or need not); what is agreed on
goes over the wire one buffer at a time. What is left after the backward pass is exposed. Modes:

- none: each gradient is a request to rank 0 in every step; what becomes ready in one cycle is sent as one buffer;
- cache: as none, but a cycle is one allreduce of a bit for each gradient;
- groups: as none, with one buffer for each layer, when its last gradient is ready;
- both: the cache's cycles, the groups' buffers; - planned: the groups' buffers in an order known beforehand;
- ddp: buckets in the order of the backward pass, nothing to agree on.

Docs: docs/communication-model.md. Pure functions of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from types import MappingProxyType
from typing import Literal, get_args

from stemdl.bench.comm_machines import MICROSECOND, Machine, Source
from stemdl.bench.comm_network import Workload
from stemdl.comm.negotiation.cached import word_count

Mode = Literal["none", "cache", "groups", "both", "planned", "ddp"]
MODES: tuple[Mode, ...] = get_args(Mode)
RANKS = (1, 2, 6, 12, 24, 48, 96, 192, 384, 768, 1536, 3072, 6000, 9000, 12_000, 18_000, 27_600)
MEBIBYTE = 2**20
_LENGTH_BYTES = 4

# CPU time of rank 0 for a request, by requests in a cycle: 0.43 µs while they fit the caches, then more.
_REQUEST_S = tuple(
    (requests, cost * MICROSECOND)
    for requests, cost in ((8_000, 0.43), (27_600, 0.53), (110_400, 0.66), (358_800, 1.24), (1_435_200, 1.48))
)


@dataclass(frozen=True)
class Software:
    """Settings and costs of the software, the same on every machine."""

    cycle_s: float = 2e-3
    """From start to start, unless a cycle takes longer."""
    fusion_bytes: float = 64 * MEBIBYTE
    """Largest buffer of gradients that became ready in one cycle."""
    bucket_bytes: float = 25 * MEBIBYTE
    first_bucket_bytes: float = 1 * MEBIBYTE
    bucket_element_bytes: float = 4.0
    """DDP's buckets are measured in the bytes of the parameters, whatever is sent."""
    request_bytes: float = 137.0
    list_bytes: float = 48.0
    """Around the requests of a rank in a cycle."""
    request_scale: float = 1.0
    """Of the measured time for a request; 1 but in the sensitivity table."""
    cached_cycle_s: float = 20 * MICROSECOND
    """Work of a rank in a cycle of the cache, without the message."""
    sources: MappingProxyType[str, Source] = field(
        default_factory=lambda: MappingProxyType(
            {
                "cycle_s": Source("public", "the original's job scripts: HOROVOD_CYCLE_TIME=2"),
                "fusion_bytes": Source("public", "Horovod before 2020: 64 MiB (pull request 2468)"),
                "bucket_bytes": Source("public", "PyTorch's DistributedDataParallel: bucket_cap_mb"),
                "request_bytes": Source(
                    "measured", "Horovod 0.15.2's own encoding of requests; names of 64 characters are assumed"
                ),
                "request_scale": Source(
                    "measured",
                    "CPU time of one thread (Sapphire Rapids class) for what rank 0 does with a request in Horovod"
                    " 0.15.2: its message code, its table, its checks; 0.43 µs each for few requests, 1.5 µs for 1.4"
                    " million",
                ),
                "cached_cycle_s": Source("measured", "CPU time of `stemdl.comm.negotiation.Cached.cycle`"),
            }
        )
    )

    def request_s(self, requests: float) -> float:
        """Rank 0's time for each of so many requests in a cycle, on the measured processor."""
        (low, low_s), *rest = _REQUEST_S
        for high, high_s in rest:
            if requests < high:
                part = max(0.0, math.log(max(requests, 1.0) / low) / math.log(high / low))
                return self.request_scale * (low_s + part * (high_s - low_s))
            low, low_s = high, high_s
        return self.request_scale * low_s


SOFTWARE = Software()


@dataclass(frozen=True)
class StepCost:
    """A step on so many ranks. Times are those of the slowest rank, which all wait for."""

    mode: Mode
    ranks: int
    step_s: float
    efficiency: float
    """Weak scaling: time of a step on one rank over this one."""
    variation_s: float
    """The slowest GPU's computation, beyond a median one's."""
    exposed_s: float
    """After the computation: exchange that nothing hides."""
    control_s: float
    """Cycles with requests or hits in them."""
    wire_s: float
    """All buffers."""
    cycles: int
    """Of those in `control_s`."""
    buffers: int
    rank0_bytes: float
    """Of control messages: what the others send to rank 0 and its answer once, or the vector of each allreduce."""


@dataclass(frozen=True)
class _Unit:
    """What is agreed on as one: one gradient, or a group of them."""

    ready_s: float
    size_bytes: float
    requests: float


@dataclass(frozen=True)
class _Agreed:
    """When a buffer may start."""

    at_s: float
    size_bytes: float


@dataclass(frozen=True)
class _Cycle:
    seconds: float
    rank0_bytes: float


def evaluate(
    machine: Machine,
    workload: Workload,
    mode: Mode,
    ranks: int,
    software: Software = SOFTWARE,
    *,
    variation: bool = True,
) -> StepCost:
    """The cost of a step. variation: count the slowest of so many GPUs, or take all to be as fast as the median."""
    assert ranks >= 1
    assert mode in MODES
    slowdown = slowest_gpu(ranks, machine.variation_sigma) if variation else 1.0
    compute_s = workload.compute_s * slowdown
    if ranks == 1:
        return StepCost(mode, 1, compute_s, 1.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0.0)
    units = _units(workload, mode, compute_s, software)
    control_s, cycles, rank0_bytes = 0.0, 0, 0.0
    if mode in ("planned", "ddp"):
        agreed: Iterable[_Agreed] = [_Agreed(unit.ready_s, unit.size_bytes) for unit in units]
    else:
        cost = _cached_cycle if mode in ("cache", "both") else _coordinator_cycle
        merge = software.fusion_bytes if mode in ("none", "cache") else 0.0
        agreed, done = _negotiated(
            units, lambda count, new: cost(machine, software, ranks, count, new), software, merge
        )
        control_s, cycles = sum(one.seconds for one in done), len(done)
        rank0_bytes = sum(one.rank0_bytes for one in done)
    free_s = wire_s = 0.0
    buffers = 0
    for one in agreed:
        seconds = machine.reduction_s(one.size_bytes, ranks)
        free_s = max(free_s, one.at_s) + seconds
        wire_s += seconds
        buffers += 1
    step_s = max(compute_s, free_s)
    return StepCost(
        mode,
        ranks,
        step_s,
        workload.compute_s / step_s,
        compute_s - workload.compute_s,
        step_s - compute_s,
        control_s,
        wire_s,
        cycles,
        buffers,
        rank0_bytes,
    )


def sweep(
    machine: Machine,
    workload: Workload,
    ranks: Sequence[int] = RANKS,
    modes: Sequence[Mode] = MODES,
    software: Software = SOFTWARE,
    *,
    variation: bool = True,
) -> list[StepCost]:
    """`evaluate` for each mode and number of ranks."""
    return [
        evaluate(machine, workload, mode, count, software, variation=variation) for mode in modes for count in ranks
    ]


def slowest_gpu(ranks: int, sigma: float) -> float:
    """Time of the slowest of so many GPUs over that of a median one: the expected largest of so many normal numbers.

    By Blom's approximation (G. Blom, Statistical Estimates and Transformed Beta-Variables, 1958).
    """
    if ranks == 1 or sigma == 0:
        return 1.0
    return 1.0 + sigma * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def _units(workload: Workload, mode: Mode, compute_s: float, software: Software) -> list[_Unit]:
    """In order of readiness."""
    forward_s = (1 - workload.backward_share) * compute_s
    backward_s = workload.backward_share * compute_s
    singles = [
        _Unit(forward_s + one.ready * backward_s, elements * workload.wire_bytes, workload.requests_per_gradient)
        for one in workload.gradients
        for elements in one.elements
    ]
    if mode in ("none", "cache"):
        return singles
    if mode == "ddp":
        return _buckets(singles, software, workload.wire_bytes)
    return [
        _Unit(
            forward_s + one.ready * backward_s,
            sum(one.elements) * workload.wire_bytes,
            len(one.elements) * workload.requests_per_gradient,
        )
        for one in workload.gradients
    ]


def _buckets(singles: Sequence[_Unit], software: Software, wire_bytes: float) -> list[_Unit]:
    """DDP's: filled in order of readiness until one is full; ready with its last gradient."""
    buckets: list[_Unit] = []
    members: list[_Unit] = []
    for one in singles:
        members.append(one)
        size_bytes = sum(unit.size_bytes for unit in members)
        limit = software.bucket_bytes if buckets else software.first_bucket_bytes
        if size_bytes / wire_bytes * software.bucket_element_bytes >= limit or one is singles[-1]:
            buckets.append(_Unit(one.ready_s, size_bytes, 0.0))
            members = []
    return buckets


def _negotiated(
    units: Sequence[_Unit], cost: Callable[[float, int], _Cycle], software: Software, merge_bytes: float
) -> tuple[list[_Agreed], list[_Cycle]]:
    """Cycle after cycle from the start of the step; a cycle takes what is ready when it starts."""
    start_s, following = 0.0, 0
    agreed: list[_Agreed] = []
    done: list[_Cycle] = []
    idle_s = max(software.cycle_s, cost(0.0, len(units)).seconds)
    while following < len(units):
        if units[following].ready_s > start_s:  # as many cycles in which nobody has anything
            start_s += idle_s * math.ceil((units[following].ready_s - start_s) / idle_s)
        new: list[_Unit] = []
        while following + len(new) < len(units) and units[following + len(new)].ready_s <= start_s:
            new.append(units[following + len(new)])
        following += len(new)
        cycle = cost(sum(unit.requests for unit in new), len(units))
        done.append(cycle)
        end_s = start_s + cycle.seconds
        agreed += [_Agreed(end_s, size_bytes) for size_bytes in _fused(new, merge_bytes)]
        start_s = max(start_s + software.cycle_s, end_s)
    return agreed, done


def _fused(units: Sequence[_Unit], limit_bytes: float) -> list[float]:
    """Sizes of buffers: units in order, joined up to a limit."""
    sizes: list[float] = []
    for unit in units:
        if sizes and sizes[-1] + unit.size_bytes <= limit_bytes:
            sizes[-1] += unit.size_bytes
        else:
            sizes.append(unit.size_bytes)
    return sizes


def _cached_cycle(machine: Machine, software: Software, ranks: int, _: float, known: int) -> _Cycle:
    """One allreduce of the bits."""
    steps = math.ceil(math.log2(ranks))
    size_bytes = 8 * word_count(known)
    seconds = steps * (machine.allreduce_step_s + size_bytes / machine.message_bytes_per_s)
    return _Cycle(software.cached_cycle_s + seconds, size_bytes)


def _coordinator_cycle(machine: Machine, software: Software, ranks: int, requests: float, _: int) -> _Cycle:
    """Lengths and requests of all other ranks to rank 0, one after the other; its work; length and answer back to all.

    The answer names each gradient and the device of every rank, as Horovod's does.
    """
    others = ranks - 1
    sent_bytes = others * (software.list_bytes + requests * software.request_bytes)
    gathers_s = 2 * machine.message_latency_s + 2 * others * machine.message_gap_s
    gathers_s += (sent_bytes + others * _LENGTH_BYTES) / machine.message_bytes_per_s
    work_s = machine.coordinator_slowdown * ranks * requests * software.request_s(ranks * requests)
    answer_bytes = (
        (_LENGTH_BYTES * ranks if requests else 0.0) + requests * software.request_bytes + software.list_bytes
    )
    steps = math.ceil(math.log2(ranks))
    broadcasts_s = 2 * steps * machine.message_latency_s + 2 * answer_bytes / machine.message_bytes_per_s
    return _Cycle(gathers_s + work_s + broadcasts_s, sent_bytes + others * _LENGTH_BYTES + answer_bytes)
