"""Transports: torch.distributed (gloo, NCCL) and MPI."""

from __future__ import annotations
