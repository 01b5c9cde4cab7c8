"""`chordage invoke`: one turn in this process, without a fleet or a service; by default with SQLite in the room."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from chordage.orchestrator.core.errors import ChordageError, Unavailable
from chordage.orchestrator.core.reasons import Reason
from chordage.workers.cli import message
from chordage.workers.cli.context import command_settings
from chordage.workers.cli.output import INTERRUPTED, json_option, say

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
@click.option("--thread", "thread_id", metavar="ID", help="The thread to continue.  [default: a new one]")
@click.option("--strategy", cls=message.StrategyOption)
@click.option("--meta", metavar="JSON", help="Your own data, stored with the turn.")
@json_option
def invoke(text: str, as_json: bool, **options: Any) -> None:
    """Run one turn in this process, and print the answer to TEXT (or - for standard input).

    Needs no service. The database is created if there is none; the thread and its history stay in it. On a terminal the
    answer is shown as it comes. Ctrl-C cancels the turn.
    """
    settings = command_settings()
    streamed = StreamedAnswer(shown=sys.stdout.isatty() and not as_json)
    rt, request = _prepared(settings, text, options, streamed)
    with closing(rt.store):
        turn = _run_turn(rt, request, settings.beat)
        raise click.exceptions.Exit(message.print_end(turn, as_json=as_json, already_shown=streamed.end()))


def _prepared(
    settings: Settings, text: str, options: dict[str, Any], streamed: StreamedAnswer
) -> tuple[Runtime, TurnRequest]:
    """Report every mistake before a database is created or a turn is stored."""
    from chordage.orchestrator.gateways.room.agents import Room
    from chordage.orchestrator.store import schema_version
    from chordage.workers import team_app
    from chordage.workers.bootstrap import models_of, runtime_from

    team_app.make_current(settings)
    request = message.request_of(settings, text, options)
    rt = replace(runtime_from(settings, with_redis=False), events=streamed)
    agent = rt.agents.get(request.agent)
    rt.tools.specs(agent)
    rt.outputs(agent)
    assert isinstance(rt.agents, Room)
    rt.agents.with_versions()
    models_of(rt.agents).check(agent)
    is_empty = schema_version.current(rt.store) is None
    schema_version.upgrade(rt.store) if is_empty else schema_version.check(rt.store)
    return rt, request


def _run_turn(rt: Runtime, request: TurnRequest, beat: float) -> TurnView:
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
        raise click.exceptions.Exit(INTERRUPTED) from None
    except Unavailable:
        raise
    except Exception as error:
        _cancel(rt, turn_id, str(error) if isinstance(error, ChordageError) else repr(error))
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _cancel(rt: Runtime, turn_id: str, reason: str) -> None:
    """No other process would end it. Running calls are aborted, and have a moment to end."""
    from chordage.orchestrator import stages
    from chordage.workers import local

    local.carry_out(rt, stages.cancel_turn(rt, turn_id, reason)[1])
    local.abort_work(rt)


class _Patience:
    """Prints why the turn does not move, each time the reason changes."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, turn: TurnView) -> None:
        why = self._why(turn)
        if why != self._last:
            say(f"chordage: turn {turn.turn_id} {why}", err=True)
        self._last = why

    @staticmethod
    def _why(turn: TurnView) -> str:
        if turn.reason is Reason.SUSPENDED:
            return f"waits for a decision: `chordage inbox --run {turn.run_id}` shows which"
        if turn.run_id is not None:
            return f"runs in another process (run {turn.run_id})"
        return f"waits: thread {turn.thread_id} or group {turn.group.value} is busy; `chordage turns` shows with what"


class StreamedAnswer:
    """Prints the answer as it comes. Implements the Events port for one turn in this process."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._text = ""  # of the reply that streams now
        self._last = ""  # the last reply, as it was shown
        self._tools: dict[str, str] = {}  # the names of calls
        self._lock = threading.Lock()

    def emit(self, run_id: str, kind: str, **data: Any) -> None:  # noqa: ARG002 - there is one run
        if not self._shown:
            return
        with self._lock:
            match kind:
                case "model.delta":
                    say(data["text"], nl=False)
                    self._text += data["text"]
                case "model.reset":
                    self._begin_again()
                case "model.replied":
                    self._finish_line()
                case "tool.started":
                    self._tools[data["call"]] = data["tool"]
                    say(f"· {data['tool']}", dim=True, err=True)
                case "tool.progress":
                    say(f"  {self._tools.get(data['call'], '')} {data['text']}", dim=True, err=True)

    def turn_done(self, turn_id: str) -> None: ...

    def end(self) -> str:
        """The last reply, as it is on the terminal."""
        with self._lock:
            self._finish_line()
            return self._last

    def _begin_again(self) -> None:
        if self._text:
            say()
            say("· the reply broke off and starts again", dim=True, err=True)
            self._text = ""

    def _finish_line(self) -> None:
        if self._text:
            say()
            self._last, self._text = self._text, ""
