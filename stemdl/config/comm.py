"""Section about the exchange of gradients between the ranks of a training job."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from stemdl.config.base import NonNegativeFloat, PositiveFloat, PositiveInt, Section


class Comm(Section):
    """How the ranks of a job agree on what is ready, and add their gradients up."""

    transport: Literal["auto", "gloo", "nccl", "mpi"] = "auto"
    """What carries the messages. auto: NCCL with gloo for small messages where there are GPUs, else MPI where an MPI
    launcher started the ranks, else gloo; the log says which."""
    negotiation: Literal["cached", "planned", "coordinator", "per_tensor", "ddp"] = "cached"
    """How ranks agree. cached: one bit for each known group, one bitwise AND in a cycle; planned: as cached until the
    order is stable, then no message at all; coordinator: names to rank 0 in every step. For comparison: per_tensor,
    an allreduce for each gradient in fixed order, and ddp, PyTorch's DistributedDataParallel."""
    groups: Literal["arrival", "layer", "count"] = "arrival"
    """Gradients reduced together. arrival: in the measured order of their arrival, up to group_mib; layer: those of one
    module; count: group_count groups of about equal size."""
    group_mib: PositiveFloat = 16.0
    """Size of a group in MiB, for `arrival`; a larger gradient is a group by itself."""
    first_group_mib: PositiveFloat = 1.0
    """Size of the group that is ready first, so that the exchange starts early."""
    group_count: PositiveInt = 8
    """Number of groups, for `count`."""
    compression: Literal["none", "fp16", "bf16"] = "none"
    """Number format on the wire. Sums of fp16 are divided in part before and in part after the addition."""
    intra_node: Literal["auto", "shared_memory", "transport", "off"] = "auto"
    """Reduction inside a node before the one across nodes. shared_memory: the node's ranks add up in memory they share
    (gradients on CPUs); transport: reduce to the node's first rank, allreduce across nodes, broadcast; off: one
    allreduce over all ranks. auto: shared_memory for several ranks on CPUs of a Linux node, else off."""
    cycle_ms: NonNegativeFloat = 1.0
    """Pause before the next cycle where a cycle found no group ready on all ranks."""
    planned_after_steps: PositiveInt = 5
    """Steps with the same groups after which their order is fixed, for `planned`."""
    planned_check_steps: PositiveInt = 100
    """Steps between two comparisons of the fixed order over all ranks, for `planned`."""
    stall_warn_s: PositiveFloat = 10.0
    """A group that some ranks wait for longer than this, in s, is reported with the ranks that are missing."""
    stall_end_s: PositiveFloat = 25.0
    """After this time in s the job ends on all ranks."""
    silence_s: PositiveFloat = 20.0
    """A rank without a sign of life for this time in s is taken as lost: the job ends on all ranks."""
    start_timeout_s: PositiveFloat = 120.0
    """How long ranks wait for one another at the start, in s."""
    buffers: Literal["mean", "rank0"] = "mean"
    """What becomes of running statistics (BatchNorm), which every rank keeps for itself, before they are used or saved:
    their mean over ranks, or rank 0's."""
    timeline: bool = False
    """Write a trace of negotiation and reduction for each rank (Chrome's trace viewer, Perfetto)."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.stall_warn_s >= self.stall_end_s:
            raise ValueError(
                f"stall_warn_s: {self.stall_warn_s:g}, allowed: less than stall_end_s ({self.stall_end_s:g})"
            )
        if self.negotiation == "ddp" and self.transport == "mpi":
            raise ValueError("negotiation: ddp needs transport gloo or nccl, found mpi")
        return self
