"""Servers asked for their tools, here and now, to be told how they are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.gateways.mcp.connections import Connections
from chordage.orchestrator.gateways.mcp.failing import OnTheWay, unlisted
from chordage.orchestrator.gateways.mcp.health import Health
from chordage.orchestrator.gateways.mcp.offers import Offer, Offers, offers_of
from chordage.orchestrator.gateways.mcp.server import McpServer

AT_ONCE = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    server: McpServer
    health: Health
    seconds: float
    error: str | None = None
    offers: tuple[Offer, ...] = ()
    remarks: tuple[str, ...] = ()


def probe(connections: Connections, servers: Sequence[McpServer]) -> list[Probe]:
    """All of them at once, in their order. Each takes at most its connect_timeout."""
    with ThreadPoolExecutor(min(AT_ONCE, max(1, len(servers)))) as threads:
        return list(threads.map(lambda server: _probe(connections, server), servers))


def _probe(connections: Connections, server: McpServer) -> Probe:
    began = time.monotonic()
    found, error = Offers(), None
    try:
        found = offers_of(server, connections.listing(server, now=True).result().tools)
    except UserError as refusal:
        error = str(refusal)
    except OnTheWay as failure:
        error = unlisted(server, failure)
    return Probe(
        server=server,
        health=connections.health(server),
        seconds=time.monotonic() - began,
        error=error,
        offers=tuple(found.by_name.values()),
        remarks=found.remarks,
    )
