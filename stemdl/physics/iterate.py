"""A few conjugate-gradient steps on the misfit, with Gauss-Newton step lengths: physics without learning.

The first step from a flat start is the classical back-projection. Fixed step lengths diverge on heavy elements; the
step that minimises the misfit of the linearised amplitudes costs one tangent pass and needs no search.
Polak and Ribière's formula keeps the directions conjugate (Nocedal and Wright, Numerical Optimization, section 5.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stemdl.physics.misfit import ScanModel

ILLUMINATION_FLOOR = 0.05
"""Share of the brightest illumination below which the preconditioner stops amplifying the gradient."""


@dataclass(frozen=True)
class Iterates:
    """What a few steps give."""

    potentials: tuple[torch.Tensor, ...]
    """(n, n) potentials in V·Å after the steps asked for."""
    gradient: torch.Tensor
    """(n, n) preconditioned gradient at the last potential."""
    residual: torch.Tensor
    """(sy, sx) summed squared residual of the amplitudes at each position, at the last potential."""
    misfits: tuple[float, ...]
    """Misfit before each step and after the last."""


@torch.no_grad()
def conjugate_gradient(
    model: ScanModel, amplitude: torch.Tensor, start: torch.Tensor, steps: int, keep: Sequence[int] = ()
) -> Iterates:
    """Descend on the misfit of one scan.

    amplitude: (sy, sx, qy, qx) recorded; start: (n, n) potential in V·Å; `keep` lists the steps after which the
    potential is wanted (1 is the back-projection); the last one is always kept.
    """
    assert steps >= 1, steps
    assert all(1 <= step <= steps for step in keep), keep
    preconditioner = 1.0 / (model.illumination + ILLUMINATION_FLOOR)
    wanted = {*keep, steps}
    potential, kept, misfits = start, [], []
    direction: torch.Tensor | None = None
    last_gradient = last_conditioned = start
    for step in range(1, steps + 1):
        state = model.linearise(potential, amplitude)
        misfits.append(state.misfit)
        gradient = state.gradient()
        conditioned = gradient * preconditioner
        if direction is None:
            direction = -conditioned
        else:
            change = float((conditioned * (gradient - last_gradient)).sum())
            scale = float((last_conditioned * last_gradient).sum())
            beta = max(0.0, change / scale) if scale > 0 else 0.0
            direction = beta * direction - conditioned
        potential = potential + state.gauss_newton_step(direction) * direction
        last_gradient, last_conditioned = gradient, conditioned
        if step in wanted:
            kept.append(potential)
    state = model.linearise(potential, amplitude)
    misfits.append(state.misfit)
    residual = state.residual.square().sum(dim=(1, 2)).reshape(model.geometry.scan_shape)
    return Iterates(tuple(kept), state.gradient() * preconditioner, residual, tuple(misfits))
