"""`chordage deny`: calls that wait are not carried out."""

from __future__ import annotations

import click

from chordage.workers.cli import deciding
from chordage.workers.cli.output import json_option


@click.command(epilog=deciding.EPILOG)
@click.argument("targets", metavar="ID...", nargs=-1, required=True)
@click.option("--reason", help="What the model is told of it.")
@click.option("--key", metavar="KEY", help="The same key and answer again change nothing.")
@json_option
def deny(targets: tuple[str, ...], reason: str | None, key: str | None, as_json: bool) -> None:
    """Turn calls that wait down: all of them, or none. ID is what `chordage inbox` lists, or the id of the call.

    The model is told so, with the reason, and the run goes on.
    """
    fields = {"action": "cancel", "reason": reason, "decision_key": key}
    deciding.carry(lambda _: [{"target": target, **fields} for target in targets], as_json=as_json)
