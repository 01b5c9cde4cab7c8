"""`chordage bus`: how far behind the streams in Redis are, and rebuilding them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from chordage.workers.cli.context import command_settings, open_runtime, open_store
from chordage.workers.cli.output import ago, json_option, print_json, say, span

if TYPE_CHECKING:
    from chordage.orchestrator.core.bus import BusCursor
    from chordage.orchestrator.runtime import Runtime
    from chordage.orchestrator.views.deliveries import BusView

PATIENCE = 30.0  # seconds for a worker that writes the streams to finish
DOUBT = 5.0  # seconds behind that are worth a remark


@click.group()
def bus() -> None:
    """The streams of facts in Redis: how far behind they are, and rebuilding them."""


@bus.command()
@json_option
def status(as_json: bool) -> None:
    """Show how far the bus is behind the database, and why. Exit code 1: it does not advance."""
    from chordage.orchestrator import views

    now = datetime.now(UTC)
    with open_store(command_settings()) as store:
        view = views.bus(store, now)
    print_json(view) if as_json else say("\n".join(_lines(view)))
    if view.error:
        raise SystemExit(1)


def _lines(view: BusView) -> list[str]:
    behind = f"{view.rows_behind} rows and {span(view.seconds_behind)} behind" if view.rows_behind else "up to date"
    lines = [f"bus         {behind}, at row {view.position} of {view.top}"]
    if view.moved_at:
        lines.append(f"moved       {ago(view.moved_at)}" + (f", by {view.worker}" if view.worker else ""))
    lines.append(f"built       {view.generation} times" if view.generation != 1 else "built       once")
    if view.error:
        when = ago(view.error_at) if view.error_at else "at some time"
        lines.append(f"error       {view.error} ({when}; {view.failures} times in a row)")
    elif view.seconds_behind > DOUBT:
        lines.append("error       none: is a worker running?")
    dead = f", {view.dead_letters} dead letters (`chordage deliveries --dead`)" if view.dead_letters else ""
    lines.append(f"deliveries  {view.deliveries_pending} pending{dead}")
    return lines


@bus.command()
@json_option
def rebuild(as_json: bool) -> None:
    """Delete the streams and write them anew from the database. The ids of entries stay the same."""
    from chordage.orchestrator import views

    with open_runtime(command_settings(), with_redis=True) as rt:
        mark = _begin(rt)
        _fill(rt)
        view = views.bus(rt.store, rt.now())
    if as_json:
        print_json({"generation": mark.generation, "from": mark.position, "to": view.position})
    else:
        say(f"the bus is rebuilt: rows {mark.position + 1} to {view.position}")


def _begin(rt: Runtime) -> BusCursor:
    """Wait for a worker that writes the streams now."""
    from chordage.orchestrator import stages
    from chordage.orchestrator.core.errors import Conflict

    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            return stages.rebuild_bus(rt)
        except Conflict:
            if rt.bus is None or time.monotonic() > give_up:
                raise
            time.sleep(0.2)


def _fill(rt: Runtime) -> None:
    """Until nothing is left: from here, or by workers that run."""
    from chordage.orchestrator import stages, views
    from chordage.orchestrator.core.errors import Unavailable

    while (before := views.bus(rt.store, rt.now())).rows_behind:
        if before.error:
            raise Unavailable(before.error)
        stages.project(rt)
        if views.bus(rt.store, rt.now()).position == before.position:
            time.sleep(0.2)
