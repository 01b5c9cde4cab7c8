"""How many database connections each kind of process may hold at once, and whether PostgreSQL lets so many in.

A test compares the table in docs/how-to/operations.md with this module. ADR 49 says why the numbers are so low.
"""

from __future__ import annotations

from contextlib import closing

import structlog

from chordage.config.settings import Settings
from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.store.capacity import Capacity, capacity
from chordage.orchestrator.store.database import Store

log = structlog.get_logger()

HEART = 1  # of each worker, for its heartbeat only
OF_A_PARENT = 2  # of a pool of processes: it sweeps, and copies the journal to the bus
OF_A_CHILD = 2  # one call at a time, and its progress notes
FEW_LEFT = 0.1
ADVICE = (
    "raise that limit, or lower CHORDAGE_POOL_SIZE, --concurrency or the number of workers "
    "(docs/how-to/operations.md, Connections)"
)


def of_threads(settings: Settings) -> int:
    """Of a worker whose tasks are threads, however many."""
    return settings.pool_size + HEART


def of_processes(processes: int) -> int:
    """Of a worker whose tasks are processes, with all of them."""
    return OF_A_PARENT + HEART + processes * OF_A_CHILD


def of_server(settings: Settings) -> int:
    """Of each process of the HTTP server, and of `chordage poll`."""
    return settings.pool_size


def check(settings: Settings, wanted: int, who: str = "this process") -> None:
    """As `shortage`, for a process that has a log."""
    if (text := shortage(settings, wanted, who)) is not None:
        log.warning("PostgreSQL has few connections left", detail=text)


def shortage(settings: Settings, wanted: int, who: str) -> str | None:
    """A warning where fewer are left. Raises ConfigError where there can never be so many."""
    with closing(Store(settings.database, pool_size=1)) as store:
        limits = capacity(store)
    if limits is None or wanted <= limits.left:
        return None
    text = (
        f"PostgreSQL lets {limits.at_most} connections in ({limits.named}), {limits.taken} are taken, and {who} may "
        f"take {wanted}: {ADVICE}"
    )
    if wanted > limits.at_most:
        raise ConfigError(text)
    return text


def fault(limits: Capacity | None) -> str | None:
    """For a look at a running fleet."""
    if limits is None or limits.left >= FEW_LEFT * limits.at_most:
        return None
    return f"{limits.taken} of {limits.at_most} connections are taken ({limits.named}): {ADVICE}"
