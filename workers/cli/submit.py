"""`chordage submit`: a message goes to the fleet."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from chordage.orchestrator.core.agent import WhenBusy
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Origin
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.workers.cli import message
from chordage.workers.cli.context import check_ready, command_settings
from chordage.workers.cli.output import INTERRUPTED, busy, json_option, print_json, say

if TYPE_CHECKING:
    from chordage.config.settings import Settings
    from chordage.orchestrator.runtime import Runtime
    from chordage.orchestrator.views import TurnView

TIMED_OUT = 4  # the exit code
POLL_EVERY = 1.0  # seconds between two reads that look for an open question
EPILOG = """\
\b
Exit codes:
0    the turn was accepted; with --wait: it was answered
1    a service does not answer, or there is no such agent
2    the message or an option is wrong
3    the turn ended without an answer
4    the turn was not done within --timeout
130  you stopped waiting; the turn continues
"""


@click.command(epilog=EPILOG)
@click.argument("text")
@click.option("--agent", help="Which agent.  [default: the room's]")
@click.option("--thread", "thread_id", metavar="ID", help="The thread to continue.  [default: a new one]")
@click.option(
    "--origin",
    type=click.Choice([str(origin) for origin in Origin]),
    default="invoke",
    show_default=True,
    help="Where the message comes from.",
)
@click.option("--channel", help="The channel of a chat: needed with --origin chat, and only allowed there.")
@click.option(
    "--group",
    type=click.Choice([str(group) for group in Group]),
    help="Priority group; not above that of the origin (chat, task, chore, will).",
)
@click.option("--strategy", cls=message.StrategyOption)
@click.option("--dedupe-key", metavar="KEY", help="A repeat with this key returns the first turn.")
@click.option("--coalesce-key", metavar="KEY", help="Of the queued turns with this key, only the latest is kept.")
@click.option("--max-rounds", type=click.IntRange(min=1), help="Tool rounds of this turn, within the agent's limit.")
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Working time of this turn, within the agent's limit.",
)
@click.option("--meta", metavar="JSON", help="Your own data, stored with the turn.")
@click.option("--not-before", metavar="TIME", help="Do not start earlier, such as 2026-01-31T09:00:00Z.")
@click.option("--deadline", metavar="TIME", help="Expire if not started by then.")
@click.option(
    "--when-busy",
    type=click.Choice([str(choice) for choice in WhenBusy]),
    help="What to do if a run is active on the thread.  [default: the agent's]",
)
@click.option("--wait", is_flag=True, help="Wait for the answer and print it.")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait no longer than this.")
@json_option
def submit(text: str, wait: bool, timeout: float | None, as_json: bool, **options: Any) -> None:
    """Send TEXT (or - for standard input) to the fleet, and print the id of its turn."""
    from chordage.tasks.accepting import accept
    from chordage.tasks.courier import Courier
    from chordage.workers.app import make_app
    from chordage.workers.bootstrap import runtime_from

    if timeout is not None and not wait:
        raise click.UsageError("--timeout limits the time of --wait: give both")
    settings = command_settings()
    request = message.request_of(settings, text, options)
    rt = runtime_from(settings)
    rt.agents.get(request.agent)
    check_ready(settings)
    with closing(rt.store):
        admitted = accept(rt, Courier(make_app(settings)), request)
        if admitted.duplicate:
            say("chordage: a turn with this dedupe key exists; here it is", err=True)
        if wait:
            raise click.exceptions.Exit(_wait(settings, rt, admitted.turn_id, timeout, as_json=as_json))
        print_json(admitted) if as_json else say(admitted.turn_id)


def _wait(settings: Settings, rt: Runtime, turn_id: str, timeout: float | None, *, as_json: bool) -> int:
    """Until the turn is done, or the time is over. Each time it suspends, say once that a decision is needed."""
    from chordage.workers.turn_waiter import wait_for_answer, waiter_for

    waiter = waiter_for(settings)
    until = None if timeout is None else time.monotonic() + timeout
    was_suspended = False
    try:
        while True:
            with busy("waiting for the decision" if was_suspended else "waiting for the answer"):
                while True:
                    left = POLL_EVERY if until is None else max(0.0, until - time.monotonic())
                    turn = wait_for_answer(waiter, rt, turn_id, min(POLL_EVERY, left))
                    is_suspended = turn.reason is Reason.SUSPENDED
                    if not _is_open(turn) or left <= 0 or is_suspended is not was_suspended:
                        break
            if not _is_open(turn):
                return message.print_end(turn, as_json=as_json)
            if is_suspended and not was_suspended:
                say(
                    f"chordage: turn {turn_id} waits for a decision: `chordage inbox --run {turn.run_id}` shows which, "
                    "and `chordage approve ID` or `chordage deny ID` decides",
                    err=True,
                )
            if left <= 0:
                break
            was_suspended = is_suspended
    except KeyboardInterrupt:
        say(f"chordage: turn {turn_id} continues; `chordage show {turn_id}` shows how it ends", err=True)
        return INTERRUPTED
    if as_json:
        print_json(turn)
    say(
        f"chordage: turn {turn_id} is not done after {timeout:g} s ({turn.fate}); `chordage show {turn_id}` shows more",
        err=True,
    )
    return TIMED_OUT


def _is_open(turn: TurnView) -> bool:
    """Also a message that was steered into a run, until that run ends."""
    is_steered = turn.disposition is Disposition.STEERED and turn.reason in {None, Reason.SUSPENDED}
    return turn.status is not TurnStatus.DONE or is_steered
