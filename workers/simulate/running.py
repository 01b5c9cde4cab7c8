"""From a scenario to what it came to: an empty database, the fleet, and what the rows say at the end."""

from __future__ import annotations

import contextlib
import gc
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from chordage.orchestrator.core.errors import Conflict
from chordage.orchestrator.store import schema_version, turns
from chordage.orchestrator.store.database import Store
from chordage.workers.simulate.engine import Clock, runtime_for
from chordage.workers.simulate.fleet import VirtualFleet
from chordage.workers.simulate.outcome import Outcome, outcome_of
from chordage.workers.simulate.scenario import Scenario

MEMORY = Path("/dev/shm")  # noqa: S108 - where a disk would only add its own time, and there is one


def simulate(scenario: Scenario, *, database: str | None, tell: Callable[[float, int], None]) -> Outcome:
    clock = Clock()
    with _store(database) as store:
        fleet = VirtualFleet(scenario, runtime_for(scenario, store, clock), clock, tell=tell)
        began = time.perf_counter()
        with _without_pauses(), _without_a_log():
            fleet.run()
        real = time.perf_counter() - began
        with store.read() as tx:
            ways = turns.count_by_outcome(tx)
        on = "PostgreSQL" if store.is_postgres else "SQLite"
        return outcome_of(scenario, fleet, ways, virtual=clock.now, real=real, on=on)


@contextlib.contextmanager
def _store(url: str | None) -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix="chordage-simulate-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
        store = Store(url or f"sqlite:///{Path(folder) / 'simulated.db'}", pool_size=2)
        with contextlib.closing(store):
            schema_version.upgrade(store)
            _check_empty(store)
            yield store


def _check_empty(store: Store) -> None:
    with store.read() as tx:
        if turns.count_by_outcome(tx):
            raise Conflict(
                "the database has turns in it: a simulation fills it with made-up ones; give an empty one, or leave "
                "--database out"
            )


@contextlib.contextmanager
def _without_a_log() -> Iterator[None]:
    """A line for each of a million turns is of no use to anybody, and takes longer than the turn."""
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        yield
    finally:
        structlog.reset_defaults() if before is None else structlog.configure(**before)


@contextlib.contextmanager
def _without_pauses() -> Iterator[None]:
    """Millions of floats are looked through again and again otherwise; there are no cycles among them."""
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
