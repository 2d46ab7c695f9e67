"""From the name of a network in the configuration to the network."""

from __future__ import annotations

from collections.abc import Callable

from stemdl.config import Config
from stemdl.models.base import PotentialNetwork
from stemdl.models.fc_densenet import fc_densenet


def _scanfield(config: Config) -> PotentialNetwork:
    # Imported when asked for: it brings the differentiable physics along, which no other network needs.
    from stemdl.models.scanfield import scanfield

    return scanfield(config)


BUILDERS: dict[str, Callable[[Config], PotentialNetwork]] = {"fc_densenet": fc_densenet, "scanfield": _scanfield}
"""`network.name` to the function that builds the network from the whole configuration.

A builder checks that scan, detector and target suit its network and raises NetworkConfigError where they do not. Its
weights are drawn from torch's current generator, on torch's current device.
"""


def build_network(config: Config) -> PotentialNetwork:
    """The network that `config.network` describes, with fresh weights.

    Raises NetworkConfigError where scan, detector or target do not suit it, ValueError for a name without a builder.
    """
    name: str = config.network.name
    if name not in BUILDERS:
        raise ValueError(f"network.name: found {name!r}; allowed: {', '.join(sorted(BUILDERS))}")
    return BUILDERS[name](config)
