"""`chordage approve`: calls that wait go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chordage.orchestrator.core.errors import InvalidDecision
from chordage.workers.cli import deciding
from chordage.workers.cli.output import json_option

if TYPE_CHECKING:
    from chordage.orchestrator.runtime import Runtime


@click.command(epilog=deciding.EPILOG)
@click.argument("targets", metavar="ID...", nargs=-1, required=True)
@click.option("--payload", metavar="JSON", help="The answer.  [default: true, or null where only that fits]")
@click.option("--args", "arguments", metavar="JSON", help="Run it with these arguments instead; for one ID.")
@click.option("--reason", help="Kept with the decision, and shown.")
@click.option("--key", metavar="KEY", help="The same key and answer again change nothing.")
@json_option
def approve(targets: tuple[str, ...], payload: str | None, arguments: str | None, as_json: bool, **more: Any) -> None:
    """Let calls that wait go on: all of them, or none. ID is what `chordage inbox` lists, or the id of the call.

    A call of which nobody knows whether it took effect wants an answer: --payload '{"answer": "retry"}', "result"
    with the result, or "failed".
    """
    if arguments is not None and len(targets) > 1:
        raise click.UsageError("give one ID with --args: each call has arguments of its own")
    answer = None if payload is None else (deciding.json_from(payload, "--payload", "payload"),)
    fields = {"action": "resume", "edited_args": _object(arguments), "reason": more["reason"]}

    def given(rt: Runtime) -> deciding.Fields:
        return [
            {"target": target, "decision_key": more["key"], **fields, "payload": (answer or (_yes(rt, target),))[0]}
            for target in targets
        ]

    deciding.carry(given, as_json=as_json)


def _object(arguments: str | None) -> dict[str, Any] | None:
    if arguments is None:
        return None
    found = deciding.json_from(arguments, "--args", "edited_args")
    if not isinstance(found, dict):
        raise InvalidDecision(f'give --args as a JSON object, such as {{"n": 7}}, not {arguments:.40}', field="args")
    return found


def _yes(rt: Runtime, target: str) -> bool | None:
    """A plain yes. Whoever asked may have laid down that a yes has no words at all."""
    from chordage.orchestrator import views
    from chordage.orchestrator.gateways.schemas import complaint_about

    schema = views.schema_asked(rt.store, target)
    if schema is None or complaint_about(True, schema) is None or complaint_about(None, schema) is not None:
        return True
    return None
