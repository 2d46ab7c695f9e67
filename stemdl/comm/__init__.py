"""The exchange of gradients between ranks: transports, negotiation, groups, the reducer, the stall watch."""

from __future__ import annotations
