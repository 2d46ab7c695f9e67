"""What is said to a user whose network does not fit the rest of the configuration."""

from __future__ import annotations

from stemdl.errors import UserError


class NetworkConfigError(UserError, ValueError):
    """A network that cannot be built for this scan, detector and target, or that is given patterns of another size.

    `key` is the full path of the configuration key to change.
    """

    def __init__(self, key: str, found: str, allowed: str) -> None:
        self.key = key
        super().__init__(f"{key}: found {found}; allowed: {allowed}")
