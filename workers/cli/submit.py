"""`chordage submit`: a message goes to the fleet."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from chordage.config.settings import Settings
from chordage.orchestrator.core.agent import WhenBusy
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Origin, TurnRequest
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.orchestrator.views import TurnView
from chordage.workers.cli import message
from chordage.workers.cli.output import busy, json_option, print_json, say

LOOK = 1.0  # seconds between two looks whether it waits for a person
EPILOG = """\
Exit codes: 0 the turn was accepted, with --wait: it was answered; 1 a service does not answer, or no such agent;
2 the message or an option is wrong; 3 the turn ended without an answer; 4 it was not done within --timeout;
130 you stopped waiting (the turn goes on).
"""


@click.command(epilog=EPILOG)
@click.argument("text")
@click.option("--agent", help="Which agent.  [default: the room's]")
@click.option("--thread", "thread_id", metavar="ID", help="The thread to go on with.  [default: a new one]")
@click.option("--origin", type=click.Choice([str(one) for one in Origin]), default="invoke", show_default=True)
@click.option("--channel", help="Where a chat takes place; --origin chat needs it, and only that takes it.")
@click.option("--group", type=click.Choice([str(one) for one in Group]), help="A lower class than the origin's own.")
@click.option("--strategy", cls=message.StrategyOption)
@click.option("--dedupe-key", metavar="KEY", help="The same key never makes a second turn; the first one is shown.")
@click.option("--coalesce-key", metavar="KEY", help="Of the queued turns with this key, only the latest is kept.")
@click.option("--max-rounds", type=click.IntRange(min=1), help="Tool rounds of this turn, within the agent's limit.")
@click.option(
    "--max-seconds", type=click.FloatRange(min=0, min_open=True), help="Work of this turn, within the agent's limit."
)
@click.option("--meta", metavar="JSON", help="Anything of yours, kept with the turn.")
@click.option("--not-before", metavar="TIME", help="Do not start earlier; such as 2026-01-31T09:00:00Z.")
@click.option("--deadline", metavar="TIME", help="Expire if not started by then.")
@click.option(
    "--when-busy",
    type=click.Choice([str(one) for one in WhenBusy]),
    help="What it does to the run at work on its thread.  [default: as the agent says]",
)
@click.option("--wait", is_flag=True, help="Wait for the answer and print it.")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait no longer than this.")
@json_option
def submit(text: str, wait: bool, timeout: float | None, as_json: bool, **options: Any) -> None:
    """Hand TEXT (or - for standard input) to the fleet, and print the id of its turn."""
    from chordage.workers.cli.opened import settings_of_command

    if timeout is not None and not wait:
        raise click.UsageError("--timeout says how long to --wait: give both")
    settings = settings_of_command()
    request = message.request_of(settings, text, options)
    raise click.exceptions.Exit(_submit(settings, request, wait=wait, timeout=timeout, as_json=as_json))


def _submit(settings: Settings, request: TurnRequest, *, wait: bool, timeout: float | None, as_json: bool) -> int:
    from chordage.tasks.courier import Courier
    from chordage.tasks.intake import accept
    from chordage.workers.app import make_app
    from chordage.workers.bootstrap import runtime_from
    from chordage.workers.cli.opened import check_ready

    rt = runtime_from(settings)
    rt.agents.get(request.agent)
    check_ready(settings)
    try:
        admitted = accept(rt, Courier(make_app(settings)), request)
        if admitted.duplicate:
            say("chordage: this dedupe key is known; here is the turn that was made then", err=True)
        if wait:
            return _wait(settings, rt, admitted.turn_id, timeout, as_json=as_json)
        print_json(admitted) if as_json else say(admitted.turn_id)
    finally:
        rt.store.close()
    return message.ANSWERED


def _is_open(turn: TurnView) -> bool:
    return turn.status is not TurnStatus.DONE or _is_on_its_way(turn)


def _answer(wait: Callable[[float], TurnView], until: float | None, before: TurnView | None) -> TurnView:
    """The turn when it is done, when the time is over, or when it has come to wait for a person since `before`."""
    was_suspended = before is not None and before.reason is Reason.SUSPENDED
    while True:
        left = LOOK if until is None else max(0.0, until - time.monotonic())
        turn = wait(min(LOOK, left))
        is_suspended = turn.reason is Reason.SUSPENDED
        if not _is_open(turn) or left <= 0 or (is_suspended and not was_suspended):
            return turn
        was_suspended = is_suspended


def _what_to_decide(turn: TurnView) -> str:
    return (
        f"waits for a decision: `chordage inbox --run {turn.run_id}` lists what about, and `chordage approve ID` or "
        "`chordage deny ID` answers it"
    )


def _is_on_its_way(turn: TurnView) -> bool:
    """It was taken into a run that is still at work."""
    return turn.disposition is Disposition.STEERED and turn.reason in {None, Reason.SUSPENDED}


def _wait(settings: Settings, rt: Any, turn_id: str, timeout: float | None, *, as_json: bool) -> int:
    from chordage.workers.turn_waiter import wait_for_answer, waiter_for

    wait = partial(wait_for_answer, waiter_for(settings), rt, turn_id)
    until = None if timeout is None else time.monotonic() + timeout
    try:
        turn = None
        while turn is None or (_is_open(turn) and (until is None or time.monotonic() < until)):
            before = turn
            with busy("waiting for the answer" if turn is None else "waiting for the decision"):
                turn = _answer(wait, until, before)
            is_over = until is not None and time.monotonic() >= until
            was_told = is_over and before is not None and before.reason is Reason.SUSPENDED
            if _is_open(turn) and turn.reason is Reason.SUSPENDED and not was_told:
                say(f"chordage: turn {turn_id} {_what_to_decide(turn)}", err=True)
    except KeyboardInterrupt:
        say(f"chordage: turn {turn_id} goes on; `chordage show {turn_id}` tells how it ends", err=True)
        return message.INTERRUPTED
    if not _is_open(turn):
        return message.tell_end(turn, as_json=as_json)
    if as_json:
        print_json(turn)
    told = f"turn {turn_id} is not done after {timeout:g} s ({turn.fate}); `chordage show {turn_id}` tells more"
    say(f"chordage: {told}", err=True)
    return message.TIMED_OUT
