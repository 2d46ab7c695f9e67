"""Benchmarks: each measures what it compares in one run, drops a warm-up, and gives medians with their spread."""

from __future__ import annotations
