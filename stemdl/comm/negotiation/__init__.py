"""Three ways to agree on what is ready, behind one interface."""

from __future__ import annotations

from stemdl.comm.control import CountedControl
from stemdl.comm.negotiation.base import Left, Negotiator
from stemdl.comm.negotiation.cached import Cached
from stemdl.comm.negotiation.coordinator import Coordinator
from stemdl.comm.negotiation.fixed import Fixed
from stemdl.comm.negotiation.planned import Planned
from stemdl.config.comm import Comm

__all__ = ["Cached", "Coordinator", "Fixed", "Left", "Negotiator", "Planned", "negotiator"]


def negotiator(config: Comm, control: CountedControl) -> Negotiator:
    """What `comm.negotiation` asks for."""
    if config.negotiation == "coordinator":
        return Coordinator(control)
    if config.negotiation == "cached":
        return Cached(control)
    if config.negotiation == "planned":
        return Planned(control, after_steps=config.planned_after_steps, check_steps=config.planned_check_steps)
    return Fixed()
