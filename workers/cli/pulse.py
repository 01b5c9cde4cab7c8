"""`chordage pulse`: tasks, chores and the will, as the pulse knows them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chordage.workers.cli.output import json_option, print_json, print_table, say

if TYPE_CHECKING:
    from chordage.config.settings import Settings
    from chordage.orchestrator.gateways.work.room_work import Look
    from chordage.orchestrator.views.pulse import StandingItem, StandingWork

COLUMNS = ("item", "state", "next", "last", "turn")
SOON = "gets its id at the next tick"
DUE = "due"
EMPTY = "no tasks, no chores, no will; docs/how-to/tasks-and-chores.md says how to write one"


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def pulse(ctx: click.Context, *, as_json: bool) -> None:
    """List tasks, chores and the will: what is next, how the last turn ended, and which files are broken.

    Exit codes: 0; 1 where a file is broken.
    """
    if ctx.invoked_subcommand is not None:
        return
    from chordage.workers.cli.opened import opened, settings_of_command

    settings = settings_of_command()
    with opened(settings) as store:
        from chordage.orchestrator.gateways.work import room_work
        from chordage.orchestrator.gateways.work.room_work import RoomWork
        from chordage.orchestrator.views import standing_work

        look = RoomWork(settings.room_path).look()
        faults = [str(error) for error in room_work.faults(settings.room_path)]
        found = standing_work(store, look, faults, _nameless(settings.room_path, look))
    print_json(found) if as_json else _print(found)
    if found.faults:
        raise click.exceptions.Exit(1)


def _nameless(room: Path, look: Look) -> list[str]:
    """Files of tasks that are neither known by an id nor broken."""
    from chordage.orchestrator.gateways.work import finding

    known = {item.path for item in look.items.values()} | set(look.faults)
    return [path for path in finding.find(room).files if path not in known]


def _print(found: StandingWork) -> None:
    of_one = _in_short if sys.stdout.isatty() else _row
    print_table(COLUMNS, [of_one(item) for item in found.items], empty=EMPTY)
    for fault in found.faults:
        say(f"chordage: {fault}", err=True)


def _in_short(item: StandingItem) -> tuple[object, ...]:
    """For people, as wide as a terminal."""
    from chordage.workers.cli.output import ago

    if item.name is None:
        return (f"- {item.path}", item.state, SOON, None, None)
    last = f"{item.disposition} {ago(item.ended_at)}" if item.ended_at else item.disposition
    is_due = item.next_due is not None and item.next_due <= datetime.now(UTC)
    return (
        item.name, item.state, DUE if is_due else item.next_due, "under way" if item.under_way else last, item.turn_id,
    )  # fmt: skip


def _row(item: StandingItem) -> tuple[object, ...]:
    """For programs: everything there is, in one line."""
    next_due = SOON if item.name is None else item.next_due
    return (
        item.name, item.state, next_due, "under way" if item.under_way else item.disposition, item.schedule,
        item.turn_id, item.turns, item.ended_at, item.title, item.path,
    )  # fmt: skip


@pulse.command()
@click.argument("key")
@json_option
def run(key: str, *, as_json: bool) -> None:
    """Give one of them a turn now. KEY is what `chordage pulse` lists, such as task:abcd2345, chore:water or will, or
    the path of its file. A schedule does not notice.
    """
    from chordage.orchestrator import stages
    from chordage.workers.bootstrap import runtime_from
    from chordage.workers.cli.opened import check_ready, settings_of_command

    settings = settings_of_command()
    check_ready(settings)
    rt = runtime_from(settings, with_redis=settings.redis is not None)
    try:
        admitted, intents = stages.run_now(rt, key)
    finally:
        rt.store.close()
    if as_json:
        print_json(admitted)
    else:
        say(admitted.turn_id)
        _say_what_follows(settings, admitted.turn_id)
    if settings.redis is not None:
        from chordage.tasks.courier import Courier
        from chordage.workers.app import make_app

        Courier(make_app(settings)).send(intents)


def _say_what_follows(settings: Settings, turn_id: str) -> None:
    if settings.redis is None:
        told = "no fleet is running here: `chordage dev` starts one, and it takes this turn up"
    else:
        told = f"`chordage show {turn_id}` tells how it goes"
    if sys.stderr.isatty() or settings.redis is None:
        say(f"chordage: {told}", err=True)
