"""`chordage pulse`: tasks, chores and the will; and running one of them now."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chordage.workers.cli.context import command_settings, open_runtime, open_store, send
from chordage.workers.cli.output import ago, json_option, print_json, print_table, say

if TYPE_CHECKING:
    from chordage.orchestrator.gateways.schedules.room_work import WorkSnapshot
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

    Exit codes: 0; 1 if a file is broken.
    """
    if ctx.invoked_subcommand is not None:
        return
    settings = command_settings()
    with open_store(settings) as store:
        from chordage.orchestrator.gateways.schedules.room_work import RoomWork
        from chordage.orchestrator.views import standing_work
        from chordage.workers.room_check import pulse_faults

        snapshot = RoomWork(settings.room_path).read()
        faults = [str(error) for error in pulse_faults(settings.room_path)]
        work = standing_work(store, snapshot, faults, _nameless(settings.room_path, snapshot))
    print_json(work) if as_json else _print(work)
    if work.faults:
        raise click.exceptions.Exit(1)


def _nameless(room: Path, snapshot: WorkSnapshot) -> list[str]:
    """Task files that have no id yet and are not broken."""
    from chordage.orchestrator.gateways.schedules import files

    known = {item.path for item in snapshot.items.values()} | set(snapshot.faults)
    return [path for path in files.find(room).stamps if path not in known]


def _print(work: StandingWork) -> None:
    row_of = _short_row if sys.stdout.isatty() else _row
    print_table(COLUMNS, [row_of(item) for item in work.items], empty=EMPTY)
    for fault in work.faults:
        say(f"chordage: {fault}", err=True)


def _short_row(item: StandingItem) -> tuple[object, ...]:
    """For people: it fits a terminal."""
    if item.name is None:
        return (f"- {item.path}", item.state, SOON, None, None)
    last = f"{item.disposition} {ago(item.ended_at)}" if item.ended_at else item.disposition
    is_due = item.next_due is not None and item.next_due <= datetime.now(UTC)
    return (
        item.name, item.state, DUE if is_due else item.next_due, "under way" if item.under_way else last, item.turn_id,
    )  # fmt: skip


def _row(item: StandingItem) -> tuple[object, ...]:
    """For programs: all columns, in one line."""
    next_due = SOON if item.name is None else item.next_due
    return (
        item.name, item.state, next_due, "under way" if item.under_way else item.disposition, item.schedule,
        item.turn_id, item.turns, item.ended_at, item.title, item.path,
    )  # fmt: skip


@pulse.command()
@click.argument("key")
@json_option
def run(key: str, *, as_json: bool) -> None:
    """Run one of them now. KEY is what `chordage pulse` lists, such as task:abcd2345, chore:water or will, or the path
    of its file. Its schedule does not change.
    """
    from chordage.orchestrator.core.audit import CLI
    from chordage.orchestrator.loops.pulse import run_now

    settings = command_settings()
    with open_runtime(settings) as rt:
        admitted, intents = run_now(rt, key, by=CLI)
    if as_json:
        print_json(admitted)
    else:
        say(admitted.turn_id)
        if settings.redis is None:
            say("chordage: no fleet is running here: `chordage dev` starts one, and it runs this turn", err=True)
        elif sys.stderr.isatty():
            say(f"chordage: `chordage show {admitted.turn_id}` shows how it goes", err=True)
    send(settings, intents)


@pulse.command()
@click.argument("key")
def pause(key: str) -> None:
    """Pause one of them until it is resumed, whatever its file says. KEY is as for `run`."""
    from chordage.orchestrator.core.audit import CLI
    from chordage.orchestrator.loops.pulse import pause as pause_item

    with open_runtime(command_settings()) as rt:
        pause_item(rt, key, CLI)
    say(f"{key} is paused; `chordage pulse resume {key}` lets it run again")


@pulse.command()
@click.argument("key")
def resume(key: str) -> None:
    """Resume one that was paused. Times inside the pause are missed; a task that was changed meanwhile gets its turn.
    KEY is as for `run`.
    """
    from chordage.orchestrator.core.audit import CLI
    from chordage.orchestrator.loops.pulse import resume as resume_item

    settings = command_settings()
    with open_runtime(settings) as rt:
        intents = resume_item(rt, key, CLI)
    send(settings, intents)
    say(f"{key} runs by itself again")
