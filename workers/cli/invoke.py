"""`chordage invoke`: one turn in this process. No fleet, no service; SQLite in the room unless told otherwise."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from chordage.orchestrator.core.errors import ChordageError, Unavailable
from chordage.orchestrator.core.reasons import Reason
from chordage.workers.cli import message
from chordage.workers.cli.letting_go import let_go
from chordage.workers.cli.output import json_option, say
from chordage.workers.cli.streaming import Streamed

if TYPE_CHECKING:
    from chordage.config.settings import Settings
    from chordage.orchestrator.core.message import TurnRequest
    from chordage.orchestrator.runtime import Runtime
    from chordage.orchestrator.views import TurnView

EPILOG = """\
Exit codes: 0 the turn was answered; 1 no such agent, or something cannot be reached; 2 the message or an option is
wrong; 3 the turn ended without an answer; 130 you cancelled it with Ctrl-C.
"""


@click.command(epilog=EPILOG)
@click.argument("text")
@click.option("--agent", help="Which agent.  [default: the room's]")
@click.option("--thread", "thread_id", metavar="ID", help="The thread to go on with.  [default: a new one]")
@click.option("--strategy", cls=message.StrategyOption)
@click.option("--meta", metavar="JSON", help="Anything of yours, kept with the turn.")
@json_option
def invoke(text: str, as_json: bool, **options: Any) -> None:
    """Carry one turn out in this process, and print the answer to TEXT (or - for standard input).

    Needs no service. The database is made if there is none; the thread and its history stay in it. On a terminal the
    answer is shown as it comes. Ctrl-C cancels the turn.
    """
    from chordage.workers.cli.opened import settings_of_command

    settings = settings_of_command()
    streamed = Streamed(shown=sys.stdout.isatty() and not as_json)
    rt, request = _prepared(settings, text, options, streamed)
    try:
        turn = _carried_out(rt, request, settings.beat)
        raise click.exceptions.Exit(message.tell_end(turn, as_json=as_json, already_shown=streamed.end()))
    finally:
        rt.store.close()


def _prepared(
    settings: Settings, text: str, options: dict[str, Any], streamed: Streamed
) -> tuple[Runtime, TurnRequest]:
    """Everything that can be wrong is found before a database is made or a turn is stored."""
    from chordage.orchestrator.gateways.room.agents import Room
    from chordage.orchestrator.store import schema_version
    from chordage.workers import team_app
    from chordage.workers.bootstrap import models_of, runtime_from
    from chordage.workers.cli.opened import is_empty

    team_app.make_current(settings)
    request = message.request_of(settings, text, options)
    rt = replace(runtime_from(settings, with_redis=False), events=streamed)
    agent = rt.agents.get(request.agent)
    rt.tools.specs(agent)
    rt.outputs(agent)
    assert isinstance(rt.agents, Room)
    models_of(rt.agents).check(agent)
    schema_version.upgrade(rt.store) if is_empty(rt.store) else schema_version.check(rt.store)
    return rt, request


def _carried_out(rt: Runtime, request: TurnRequest, beat: float) -> TurnView:
    from chordage.orchestrator import stages
    from chordage.workers import local

    admitted, _ = stages.admit(rt, request)
    turn_id = admitted.turn_id
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with local.heartbeat(rt, beat):
            return local.interruptible(lambda: local.complete(rt, turn_id, on_wait=_Patience()))
    except KeyboardInterrupt:
        _cancel(rt, turn_id, "interrupted at the terminal")
        say(f"\nchordage: turn {turn_id} was cancelled", err=True)
        raise click.exceptions.Exit(message.INTERRUPTED) from None
    except Unavailable:
        raise
    except Exception as error:
        _cancel(rt, turn_id, str(error) if isinstance(error, ChordageError) else repr(error))
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _cancel(rt: Runtime, turn_id: str, reason: str) -> None:
    """Nobody else would end it. What is still at work for it is told to stop, and has a moment to do so."""
    from chordage.orchestrator import stages
    from chordage.workers import local

    local.carry_out(rt, stages.cancel_turn(rt, turn_id, reason)[1])
    let_go(rt)


class _Patience:
    """Says why nothing happens, and says it again only when it has become something else."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, turn: TurnView) -> None:
        told = self._why(turn)
        if told != self._said:
            say(f"chordage: turn {turn.turn_id} {told}", err=True)
        self._said = told

    @staticmethod
    def _why(turn: TurnView) -> str:
        if turn.reason is Reason.SUSPENDED:
            return f"waits for a decision: `chordage inbox --run {turn.run_id}` shows which"
        if turn.run_id is not None:
            return f"is carried out by another process (run {turn.run_id})"
        return f"waits: thread {turn.thread_id} or group {turn.group.value} is busy; `chordage turns` shows with what"
