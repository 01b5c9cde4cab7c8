"""`chordage bus`: how far the streams in Redis are, and building them anew."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from chordage.workers.cli.output import ago, json_option, print_json, say, span

if TYPE_CHECKING:
    from chordage.orchestrator.core.bus import Mark
    from chordage.orchestrator.runtime import Runtime
    from chordage.orchestrator.views.deliveries import BusView

PATIENCE = 30.0  # seconds for whoever writes at this moment
DOUBT = 5.0  # seconds behind that are worth a word


@click.group()
def bus() -> None:
    """The streams of facts in Redis: how far they are, and building them anew."""


@bus.command()
@json_option
def status(as_json: bool) -> None:
    """Show how far the bus is behind the truth, and why. Exit code 1: it stands still."""
    from chordage.orchestrator import views
    from chordage.workers.cli.opened import opened, settings_of_command

    now = datetime.now(UTC)
    with opened(settings_of_command()) as store:
        found = views.bus(store, now)
    if as_json:
        print_json(found)
    else:
        say("\n".join(_lines(found)))
    if found.error:
        raise SystemExit(1)


def _lines(found: BusView) -> list[str]:
    behind = f"{found.rows_behind} rows and {span(found.seconds_behind)} behind" if found.rows_behind else "up to date"
    lines = [f"bus         {behind}, at row {found.position} of {found.top}"]
    if found.moved_at:
        lines.append(f"moved       {ago(found.moved_at)}" + (f", by {found.worker}" if found.worker else ""))
    lines.append(f"built       {found.generation} times" if found.generation != 1 else "built       once")
    if found.error:
        when = ago(found.error_at) if found.error_at else "at some time"
        lines.append(f"error       {found.error} ({when}; {found.failures} times in a row)")
    elif found.seconds_behind > DOUBT:
        lines.append("error       none: is a worker running?")
    dead = f", {found.dead_letters} dead letters (`chordage deliveries --dead`)" if found.dead_letters else ""
    lines.append(f"deliveries  {found.deliveries_pending} pending{dead}")
    return lines


@bus.command()
@json_option
def rebuild(as_json: bool) -> None:
    """Throw the streams away and write them anew, from the database alone. Ids stay what they were."""
    from chordage.workers.bootstrap import runtime_from
    from chordage.workers.cli.opened import check_database, settings_of_command

    settings = settings_of_command()
    rt = runtime_from(settings, with_redis=True)
    try:
        check_database(settings, rt.store)
        mark = _begin(rt)
        _fill(rt)
        from chordage.orchestrator import views

        found = views.bus(rt.store, rt.now())
    finally:
        rt.store.close()
    if as_json:
        print_json({"generation": mark.generation, "from": mark.position, "to": found.position})
    else:
        say(f"the bus is built anew: rows {mark.position + 1} to {found.position}")


def _begin(rt: Runtime) -> Mark:
    """Whoever writes it at this moment is through in a moment."""
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
    """Here, or by the workers that run: until nothing is left."""
    from chordage.orchestrator import stages, views
    from chordage.orchestrator.core.errors import Unavailable

    while (now := views.bus(rt.store, rt.now())).rows_behind:
        if now.error:
            raise Unavailable(now.error)
        before = now.position
        stages.project(rt)
        if views.bus(rt.store, rt.now()).position == before:
            time.sleep(0.2)
