"""What approve, deny and decide have in common: answers are stored, all of them or none, and what waited goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from chordage.orchestrator.core.approvals import Action
from chordage.orchestrator.core.errors import InvalidDecision
from chordage.orchestrator.core.text import loads_json
from chordage.workers.cli.letting_go import let_go
from chordage.workers.cli.message import INTERRUPTED, SOURCE
from chordage.workers.cli.output import print_json, say

if TYPE_CHECKING:
    from chordage.config.settings import Settings
    from chordage.orchestrator.core.approvals import DecisionRequest
    from chordage.orchestrator.core.intents import Intent
    from chordage.orchestrator.run.approvals import Decided
    from chordage.orchestrator.runtime import Runtime

Fields = list[dict[str, Any]]  # decisions as JSON has them

EPILOG = """\
Where no Redis is set there is no fleet; then the run goes on in this process, and the command ends when it rests or is
done. Ctrl-C leaves the decision stored.

Exit codes: 0 all of it is stored; 1 there is no such question, it was answered otherwise, or a service does not
answer; 2 an answer or an option is wrong. Unless it is 0, nothing is stored.
"""


def json_from(text: str, given: str, field: str) -> Any:
    try:
        return loads_json(text)
    except (ValueError, RecursionError) as error:
        raise InvalidDecision(f"give {given} as JSON: {error}", field=field) from error


def carry(fields_of: Callable[[Runtime], Fields], *, as_json: bool) -> None:
    """Store the decisions, tell so, and see to it that what they are about goes on."""
    from chordage.orchestrator import stages
    from chordage.tasks.request import decisions_from
    from chordage.workers.bootstrap import runtime_from
    from chordage.workers.cli.opened import check_ready, settings_of_command

    settings = settings_of_command()
    check_ready(settings)
    rt = runtime_from(settings, with_redis=settings.redis is not None)
    try:
        fields = fields_of(rt)
        requests = decisions_from(fields)
        decided, intents = stages.decide(rt, requests, source=SOURCE)
        print_json(decided) if as_json else _tell(requests, decided)
        _go_on(settings, rt, intents)
    finally:
        rt.store.close()


def _tell(requests: Sequence[DecisionRequest], decided: Sequence[Decided]) -> None:
    for request, one in zip(requests, decided, strict=True):
        done = "denied" if request.action is Action.CANCEL else "approved"
        before = " before, in the same words" if one.duplicate else ""
        say(f"{done}{before}: suspension {one.suspension_id}, call {one.call_id}, run {one.run_id}")


def _go_on(settings: Settings, rt: Runtime, intents: Sequence[Intent]) -> None:
    if settings.redis is not None:
        from chordage.tasks.courier import Courier
        from chordage.workers.app import make_app

        Courier(make_app(settings)).send(intents)
    elif intents:
        _go_on_here(settings, rt, intents)


def _go_on_here(settings: Settings, rt: Runtime, intents: Sequence[Intent]) -> None:
    """Where no Redis is set no fleet can be running, and nobody else would do what has been decided."""
    from chordage.workers import local

    say("chordage: there is no fleet, so the run goes on in this process", err=True)
    try:
        with local.heartbeat(rt, settings.beat):
            local.interruptible(lambda: local.carry_out(rt, intents))
    except KeyboardInterrupt:
        let_go(rt)
        say("\nchordage: `chordage dev` goes on with the run; what you decided is stored", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
