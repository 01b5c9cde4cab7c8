"""`chordage turns`, `threads`, `cancel`, `retry`, `steer` and `compact`: lists, and what can be done to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from chordage.orchestrator.core.audit import CLI, Audited
from chordage.orchestrator.core.errors import Conflict
from chordage.orchestrator.core.message import Message, Origin, Sender
from chordage.orchestrator.core.prices import cost_text
from chordage.orchestrator.core.status import TurnStatus
from chordage.workers.cli.context import command_settings, open_runtime, open_store, send
from chordage.workers.cli.message import SOURCE, text_from
from chordage.workers.cli.output import json_option, plain, print_json, print_table, say, took

if TYPE_CHECKING:
    from chordage.config.settings import Settings
    from chordage.orchestrator.core.why.reasons import WaitReason
    from chordage.orchestrator.store.database import Store
    from chordage.orchestrator.views.turns import TurnLine


@click.command()
@click.option("--status", type=click.Choice([str(status) for status in TurnStatus]), help="Only these.")
@click.option("--thread", "thread_id", metavar="ID", help="Only of this thread.")
@click.option("--agent", help="Only of this agent.")
@click.option("--before", metavar="TURN", help="Only what came before this turn: the next page.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@json_option
def turns(
    *, status: str | None, thread_id: str | None, agent: str | None, before: str | None, limit: int, as_json: bool
) -> None:
    """List turns, newest first. In options, the first letters of an id are enough."""
    from chordage.orchestrator import views

    settings = command_settings()
    with open_store(settings) as store:
        lines = views.turns(
            store,
            limit=limit,
            status=TurnStatus(status) if status else None,
            thread_id=thread_id and views.full_id(store, views.IdKind.THREAD, thread_id),
            agent=agent,
            before=before and views.full_id(store, views.IdKind.TURN, before),
        )
        reasons = _reasons(settings, store, [line.turn_id for line in lines if line.status is not TurnStatus.DONE])
    if as_json:
        print_json([{**plain(line), "why": reasons.get(line.turn_id)} for line in lines])
        return
    rows = []
    for turn in lines:
        seconds = (turn.done_at - turn.started_at).total_seconds() if turn.started_at and turn.done_at else None
        rows.append((
            turn.turn_id, _state(turn, reasons.get(turn.turn_id)), turn.path or turn.agent, turn.queued_at,
            None if seconds is None else took(seconds), None if turn.run_id is None else cost_text(turn.usage),
            turn.thread_id, turn.text,
        ))  # fmt: skip
    columns = ("turn", "status", "agent", "came", "took", "cost", "thread", "text")
    print_table(columns, rows, empty="no turns; `chordage submit TEXT` makes one")


def _reasons(settings: Settings, store: Store, turn_ids: Sequence[str]) -> dict[str, WaitReason]:
    """Why those of a list wait that are not done."""
    from chordage.orchestrator import views
    from chordage.orchestrator.core.why.reasons import RowKey, RowKind
    from chordage.workers.cli.why import sources_of

    if not turn_ids:
        return {}
    found = views.whys(sources_of(settings, store), [RowKey(RowKind.TURN, turn_id) for turn_id in turn_ids])
    return {key.id: reason for key, reason in found.items()}


def _state(turn: TurnLine, reason: WaitReason | None) -> str:
    """`queued: group full`. Where its fate says more than its status, that is enough."""
    if reason is None or turn.fate != turn.status.value:
        return turn.fate
    return f"{turn.fate}: {reason.cause.value.replace('_', ' ')}"


@click.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@json_option
def threads(limit: int, as_json: bool) -> None:
    """List threads, those with the newest turn first."""
    from chordage.orchestrator import views

    with open_store(command_settings()) as store:
        lines = views.threads(store, limit=limit)
    if as_json:
        print_json(lines)
        return
    rows = [
        (line.thread_id, line.agent, line.turns, line.queued, line.open_run_status, line.open_run, line.last_activity)
        for line in lines
    ]
    columns = ("thread", "agent", "turns", "queued", "state", "run", "active")
    print_table(columns, rows, empty="no threads; `chordage submit TEXT` makes one")


@click.command()
@click.argument("turn_id", metavar="TURN")
@click.option("--reason", help="Stored and shown with the run.")
@json_option
def cancel(turn_id: str, reason: str | None, as_json: bool) -> None:
    """Cancel a turn. A queued turn never starts; the run of an active one ends, and its calls are aborted.

    The first letters of its id are enough if no other turn begins so.

    Exit code 1 if the turn was done already.
    """
    from chordage.orchestrator import stages, views

    settings = command_settings()
    with open_runtime(settings) as rt:
        turn_id = views.full_id(rt.store, views.IdKind.TURN, turn_id)
        ended, intents = stages.cancel_turn(rt, turn_id, reason, by=CLI)
        send(settings, intents)
    if as_json:
        print_json({"turn_id": turn_id, "cancelled": ended})
    elif ended:
        say(f"turn {turn_id} is cancelled")
    else:
        say(f"chordage: turn {turn_id} is done already; `chordage show {turn_id}` shows how it ended", err=True)
    raise click.exceptions.Exit(0 if ended else 1)


@click.command()
@click.argument("turn_id", metavar="TURN")
@json_option
def retry(turn_id: str, as_json: bool) -> None:
    """Send the message of a turn again that ended without an answer, and print the id of the new turn.

    A turn is retried once: the second time this prints the turn that was made then. Retry that one to try again.
    """
    from chordage.orchestrator import stages, views

    settings = command_settings()
    with open_runtime(settings) as rt:
        turn_id = views.full_id(rt.store, views.IdKind.TURN, turn_id)
        request = replace(views.retry_of(rt.store, turn_id), by=CLI, audited=Audited.RETRIED)
        admitted, intents = stages.admit(rt, request)
        send(settings, intents)
    if admitted.duplicate:
        say(f"chordage: turn {turn_id} was retried before; here is its new turn", err=True)
    print_json(admitted) if as_json else say(admitted.turn_id)


@click.command()
@click.argument("some_id", metavar="TURN|RUN|THREAD")
@click.argument("text")
@json_option
def steer(some_id: str, text: str, as_json: bool) -> None:
    """Send TEXT (or - for standard input) into a run that is at work, and print the id of its turn.

    The run takes it in at its next step, and a run that waits for decisions when they have come. If it ends before, the
    message is the next turn of its thread.
    """
    from chordage.orchestrator import stages, views

    settings = command_settings()
    with open_runtime(settings) as rt:
        run = views.run(rt.store, _run_of(rt.store, some_id))
        content = Message(
            origin=Origin.INVOKE, channel=None, sender=Sender.OWNER, thread_id=run.thread_id, text=text_from(text),
            meta={},
        )  # fmt: skip
        request = views.steering_of(run, content, source=SOURCE, space=None, key=None)
        admitted, intents = stages.admit(rt, replace(request, by=CLI))
        send(settings, intents)
    print_json(admitted) if as_json else say(admitted.turn_id)


def _run_of(store: Store, some_id: str) -> str:
    """Raises NotFound, and Conflict where nothing is at work."""
    from chordage.orchestrator import views

    kind, id_ = views.identify(store, some_id)
    match kind:
        case views.IdKind.RUN:
            return id_
        case views.IdKind.TURN:
            run_id = views.turn(store, id_).run_id
        case views.IdKind.THREAD:
            run_id = views.open_run_on(store, id_)
    if run_id is None:
        raise Conflict(f"{kind.value} {id_} has no run to steer; `chordage submit TEXT --thread ID` sends a turn")
    return run_id


@click.command()
@click.argument("thread_id", metavar="THREAD")
@json_option
def compact(thread_id: str, as_json: bool) -> None:
    """Have the older part of a thread summarised before its next model call: that of its open run, or of its next turn.

    Everything that was said stays stored, and `chordage show` shows all of it; models read the summary instead.
    """
    from chordage.orchestrator import stages

    with open_runtime(command_settings(), with_redis=False) as rt:
        stages.ask_to_compact(rt, thread_id, by=CLI)
    if as_json:
        print_json({"thread_id": thread_id, "asked": True})
    else:
        say(f"thread {thread_id} will be summarised before its next model call")
