"""`chordage simulate`: how a planned fleet would perform, in virtual time."""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import structlog

from chordage.orchestrator.core.errors import Conflict
from chordage.orchestrator.store import schema_version, turns
from chordage.orchestrator.store.database import Store
from chordage.workers.cli.output import console, json_option, print_json, say, span
from chordage.workers.simulate import report
from chordage.workers.simulate.fleet import VirtualClock, VirtualFleet, runtime_for
from chordage.workers.simulate.result import SimulationResult, result_of
from chordage.workers.simulate.scenario import Scenario, read

PROGRESS_EVERY = 30.0  # seconds, where standard error is no terminal
SURE = 5.0  # seconds after which an estimate of the time left is shown
MEMORY = Path("/dev/shm")  # noqa: S108 - where it exists, no disk adds its own time


@click.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--database", metavar="URL", help="An empty database to simulate on.  [default: SQLite, in memory]")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Of virtual time.  [default: the file's]")
@json_option
def simulate(*, scenario: Path, database: str | None, seconds: float | None, as_json: bool) -> None:
    """Run the fleet and the arrivals that the file SCENARIO describes, under virtual time.

    Admission, dispatch and ending are the engine's own, on a real database; models, tools, the broker and all waiting
    are simulated. See docs/how-to/scale.md.
    """
    plan = read(scenario)
    if seconds is not None:
        plan = plan.model_copy(update={"seconds": seconds})
    with console(stderr=True).status("simulating …") as status:
        began = last = time.monotonic()

        def show_progress(now: float, done: int) -> None:
            nonlocal last
            text = f"simulating … {progress(now, plan.seconds, done, time.monotonic() - began)}"
            status.update(text)
            if not sys.stderr.isatty() and time.monotonic() - last >= PROGRESS_EVERY:
                last = time.monotonic()
                say(text, err=True)

        result = run_simulation(plan, database=database, progress=show_progress)
    print_json(result) if as_json else report.show(result)


def progress(now: float, seconds: float, done: int, elapsed: float) -> str:
    """How far it is, and an estimate of the time left: the rest of a day may be busier than its beginning."""
    share = min(1.0, now / seconds)
    text = f"{span(now)} of {span(seconds)} ({share:.0%}), {done:,} turns done, {span(elapsed)} so far"
    if share >= 1:
        return f"{text}; what is left is worked off"
    return f"{text}, about {span(elapsed / share - elapsed)} to go" if share > 0 and elapsed >= SURE else text


def run_simulation(
    scenario: Scenario, *, database: str | None, progress: Callable[[float, int], None]
) -> SimulationResult:
    clock = VirtualClock()
    with _store(database) as store:
        fleet = VirtualFleet(scenario, runtime_for(scenario, store, clock), clock, progress=progress)
        began = time.perf_counter()
        with _without_collection(), _without_log():
            fleet.run()
        real = time.perf_counter() - began
        with store.read() as tx:
            ways = turns.count_by_outcome(tx)
        on = "PostgreSQL" if store.is_postgres else "SQLite"
        return result_of(scenario, fleet.measured, fleet.turn_slots.longest, ways, virtual=clock.now, real=real, on=on)


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
def _without_log() -> Iterator[None]:
    """A line for each of a million turns has no reader, and takes longer than the turn."""
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        yield
    finally:
        structlog.reset_defaults() if before is None else structlog.configure(**before)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """The collector would visit millions of floats again and again; there are no cycles among them."""
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
