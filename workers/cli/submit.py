"""`chordage submit`: a message goes to the fleet."""

from __future__ import annotations

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
@click.option("--strategy", help="How the turn is completed: direct or react.  [default: the agent's]")
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


def _is_on_its_way(turn: TurnView) -> bool:
    """It was taken into a run that is still at work."""
    return turn.disposition is Disposition.STEERED and turn.reason in {None, Reason.SUSPENDED}


def _wait(settings: Settings, rt: Any, turn_id: str, timeout: float | None, *, as_json: bool) -> int:
    from chordage.workers.waiting import bell_for, wait_for_answer

    try:
        with busy("waiting for the answer"):
            turn = wait_for_answer(bell_for(settings), rt, turn_id, timeout)
    except KeyboardInterrupt:
        say(f"chordage: turn {turn_id} goes on; `chordage show {turn_id}` tells how it ends", err=True)
        return message.INTERRUPTED
    if turn.status is TurnStatus.DONE and not _is_on_its_way(turn):
        return message.tell_end(turn, as_json=as_json)
    if as_json:
        print_json(turn)
    told = f"turn {turn_id} is not done after {timeout:g} s ({turn.fate}); `chordage show {turn_id}` tells more"
    say(f"chordage: {told}", err=True)
    return message.TIMED_OUT
