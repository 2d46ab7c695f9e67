"""The communication model's machines: what a message and a sum cost on them, each figure with where it comes from.

Nothing here is measured by us on these machines, and nothing is fitted to a scaling efficiency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Tag = Literal["public", "measured", "assumed"]
MICROSECOND = 1e-6
GIGABYTE = 1e9


@dataclass(frozen=True)
class Source:
    """Where an input comes from: a public figure, a measurement of this project, or an assumption."""

    tag: Tag
    text: str


@dataclass(frozen=True)
class Algorithm:
    """One way in which NCCL or RCCL adds up a buffer, as the library's own cost model describes it: α + bytes/β.

    tree: α = base + 2 ((GPUs in a node - 1) intra + log2(nodes) inter), bytes pass every link twice;
    ring: α = base + 2 (ranks - nodes) intra + 2 (nodes - 1) inter, bytes pass 2 (ranks - 1) / ranks times.
    """

    name: str
    shape: Literal["tree", "ring"]
    base_s: float
    intra_s: float
    inter_s: float
    share: float
    """Of the bandwidth of the slowest link."""

    def seconds(
        self, size_bytes: float, ranks: int, nodes: int, link_bytes_per_s: float, latency_scale: float
    ) -> float:
        """Time for a buffer over all ranks."""
        per_node = -(-ranks // nodes)
        if self.shape == "tree":
            latency_s = self.base_s + 2 * ((per_node - 1) * self.intra_s + math.ceil(math.log2(nodes)) * self.inter_s)
            passes = 2.0
        else:
            latency_s = self.base_s + 2 * ((ranks - nodes) * self.intra_s + (nodes - 1) * self.inter_s)
            passes = 2 * (ranks - 1) / ranks
        return latency_scale * latency_s + passes * size_bytes / (self.share * link_bytes_per_s)


@dataclass(frozen=True)
class Machine:
    """A machine as the model sees it. Rates are those of one direction, times those of one message or step."""

    name: str
    gpus_per_node: int
    network_bytes_per_s: float
    """Into or out of a node, by all its network adapters."""
    node_bytes_per_s: float
    """Between two GPUs of a node."""
    algorithms: tuple[Algorithm, ...]
    message_latency_s: float
    """A short MPI message from node to node."""
    allreduce_step_s: float
    """An MPI allreduce of a few bytes takes this times log2(ranks)."""
    message_gap_s: float
    """Between two short messages that one process receives."""
    message_bytes_per_s: float
    """Of long MPI messages into one process."""
    coordinator_slowdown: float
    """How much longer rank 0's processor needs for a request than the one on which it was measured."""
    variation_sigma: float
    """Standard deviation of the speed of GPUs of the same kind over its median."""
    collective_latency_scale: float = 1.0
    """Of all latencies in `algorithms`; 1 but in the sensitivity table."""
    sources: Mapping[str, Source] = field(default_factory=dict)
    """By field."""

    def nodes(self, ranks: int) -> int:
        """Nodes that so many ranks fill, one rank for each GPU."""
        return -(-ranks // self.gpus_per_node)

    def reduction_s(self, size_bytes: float, ranks: int) -> float:
        """Time of one allreduce of a buffer on GPUs: by the algorithm that is quickest for its size."""
        if ranks == 1:
            return 0.0
        nodes = self.nodes(ranks)
        rate = self.node_bytes_per_s if nodes == 1 else min(self.node_bytes_per_s, self.network_bytes_per_s)
        scale = self.collective_latency_scale
        return min(one.seconds(size_bytes, ranks, nodes, rate, scale) for one in self.algorithms)


def _us(base: float, intra: float, inter: float) -> tuple[float, float, float]:
    return base * MICROSECOND, intra * MICROSECOND, inter * MICROSECOND


_VARIATION = 0.08 / (2 * 2.698)
_VARIATION_TEXT = (
    "Sinha et al., SC22, arXiv:2208.11035v3, abstract: 8 % performance variation on average over five machines, Summit"
    " among them (largest 22 %, outliers to 1.5x left out). The figure is public; that it is the distance of the"
    " whiskers of a normal distribution, 2 x 2.698 σ, is our reading"
)

SUMMIT = Machine(
    name="Summit",
    gpus_per_node=6,
    network_bytes_per_s=23 * GIGABYTE,
    node_bytes_per_s=50 * GIGABYTE,
    # Latencies are those of a path over PCIe class inside the node: GPUs of two sockets have no NVLink path.
    algorithms=(
        Algorithm("tree, simple", "tree", *_us(0.0, 28.0, 50.0), share=0.9),
        Algorithm("tree, low latency", "tree", *_us(4.4, 1.8, 5.0), share=0.9 / 3.8),
        Algorithm("ring, simple", "ring", *_us(8.4, 5.7, 9.6), share=1.0),
        Algorithm("ring, low latency", "ring", *_us(3.6, 1.8, 2.7), share=0.25),
    ),
    message_latency_s=1.15 * MICROSECOND,
    allreduce_step_s=13.3 / 7 * MICROSECOND,
    message_gap_s=0.32 * MICROSECOND,
    message_bytes_per_s=8.4 * GIGABYTE,
    coordinator_slowdown=1.6,
    variation_sigma=_VARIATION,
    sources=MappingProxyType(
        {
            "gpus_per_node": Source("public", "OLCF, Summit User Guide: 6 V100 in a node, about 4,600 nodes"),
            "network_bytes_per_s": Source(
                "public", "OLCF, Summit User Guide: dual-rail EDR InfiniBand (2 x 12.5 GB/s), 23 GB/s into a node"
            ),
            "node_bytes_per_s": Source("public", "OLCF, Summit User Guide: NVLink, 50 GB/s in one direction"),
            "collective_latency_scale": Source(
                "public",
                "NVIDIA/nccl, src/graph/tuning.cc at 01afd20a (2.8): latencies of tree and ring, shares of the"
                " bandwidth; without its correction for buffers of medium size and without LL128",
            ),
            "message_latency_s": Source(
                "public",
                "osu_latency of 8 bytes between two nodes of Lassen, which has Summit's processors and network:"
                " converged-computing/metrics-operator-experiments, google/kubecon/hpc/lassen-run1",
            ),
            "allreduce_step_s": Source(
                "public", "the same runs, osu_allreduce of 8 bytes on 128 nodes, one rank each: 13.3 µs in 7 steps"
            ),
            "message_gap_s": Source(
                "public",
                "the same runs, osu_mbw_mr: 64 pairs, 201 million messages of 1 byte in a second. Taken to hold for"
                " messages of many senders to one process",
            ),
            "message_bytes_per_s": Source("public", "the same runs, osu_mbw_mr of 4 MiB: 537 GB/s over 64 pairs"),
            "coordinator_slowdown": Source(
                "assumed",
                "POWER9 against the processor of the measurement, one thread: a thread of a POWER8 does 0.87 of a"
                " Broadwell's (AnandTech, 'Assessing IBM's POWER8', SPEC CPU2006), POWER9 taken as the same, Broadwell"
                " to Sapphire Rapids taken as 1.4",
            ),
            "variation_sigma": Source("assumed", _VARIATION_TEXT),
        }
    ),
)

FRONTIER = Machine(
    name="Frontier",
    gpus_per_node=8,
    network_bytes_per_s=100 * GIGABYTE,
    node_bytes_per_s=50 * GIGABYTE,
    algorithms=(
        Algorithm("tree, simple", "tree", *_us(17.0, 2.5, 20.8), share=0.95),
        Algorithm("tree, low latency", "tree", *_us(12.0, 0.8, 11.8), share=0.04),
        Algorithm("ring, simple", "ring", *_us(17.0, 6.0, 15.1), share=1.0),
        Algorithm("ring, low latency", "ring", *_us(12.0, 2.0, 9.5), share=0.04),
    ),
    message_latency_s=2.6 * MICROSECOND,
    allreduce_step_s=3.0 * MICROSECOND,
    message_gap_s=0.4 * MICROSECOND,
    message_bytes_per_s=20 * GIGABYTE,
    coordinator_slowdown=1.2,
    variation_sigma=_VARIATION,
    sources=MappingProxyType(
        {
            "gpus_per_node": Source("public", "OLCF, Frontier User Guide: 8 GCDs in a node, 9,856 nodes"),
            "network_bytes_per_s": Source("public", "OLCF, Frontier User Guide: 4 Slingshot adapters of 25 GB/s"),
            "node_bytes_per_s": Source(
                "public", "OLCF, Frontier User Guide: 50 GB/s on the slowest path between GCDs of a node (200 at most)"
            ),
            "collective_latency_scale": Source(
                "public",
                "ROCm/rccl, src/graph/tuning.cc (2.18 to 2.20), default table (model 0): latencies of tree and ring,"
                " shares of the bandwidth; without its correction for the size of a buffer",
            ),
            "message_latency_s": Source(
                "assumed", "about what is published of GPCNeT on Frontier; not looked up again"
            ),
            "allreduce_step_s": Source(
                "assumed", "about 51 µs for 8 bytes on all of Frontier (GPCNeT), in 17 steps; not looked up again"
            ),
            "message_gap_s": Source("assumed", "somewhat above that of Summit's network"),
            "message_bytes_per_s": Source("assumed", "most of one adapter's 25 GB/s"),
            "coordinator_slowdown": Source("assumed", "EPYC 'Trento' against the processor of the measurement"),
            "variation_sigma": Source("assumed", _VARIATION_TEXT + ". Taken to hold here too"),
        }
    ),
)

MACHINES = (SUMMIT, FRONTIER)
