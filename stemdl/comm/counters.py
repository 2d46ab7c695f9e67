"""What the exchange cost: counted where it happens, read by the metrics and the benchmarks."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Counters:
    """Totals of this rank since the start; differences between two readings belong to the steps between."""

    steps: int = 0
    cycles: int = 0
    """Rounds of negotiation."""
    slow_cycles: int = 0
    """Of these, with requests through rank 0."""
    control_messages: int = 0
    """Collective calls of the control plane."""
    control_bytes: int = 0
    """Control bytes through this rank: gathered from others and sent to each of them (rank 0), own requests and what
    came back (others), and the vector of each bitwise allreduce once."""
    data_messages: int = 0
    """Reductions of flat buffers."""
    data_bytes: int = 0
    """Bytes of the buffers reduced."""
    exposed_wait_s: float = 0.0
    """Time the training step waited for gradients after its backward pass."""

    def as_dict(self) -> dict[str, float]:
        """JSON-able."""
        return dict(asdict(self))
