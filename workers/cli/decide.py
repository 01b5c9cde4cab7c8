"""`chordage decide`: a list of decisions, stored as one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from chordage.orchestrator.core.errors import InvalidDecision
from chordage.workers.cli import deciding
from chordage.workers.cli.output import json_option

EXAMPLE = '[{"id": "ID", "action": "approve", "payload": true}]'


@click.command(epilog=f"For example:\n\n\b\n{EXAMPLE}\n\n{deciding.EPILOG}")
@click.argument("file", metavar="[FILE|-]", default="-")
@json_option
def decide(file: str, as_json: bool) -> None:
    """Store a JSON list of decisions, all of them or none.

    Each is an object: target (the id of a suspension or a call; "id" is read as well), action (resume or approve,
    cancel or deny), and if need be payload, edited_args, reason, decision_key.
    """
    fields = _list_from(_text(file))
    deciding.carry(lambda _: fields, as_json=as_json)


def _text(file: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return raw.decode()
    except OSError as error:
        raise InvalidDecision(f"give a file that can be read, or -: {file}: {error.strerror}", field="file") from error
    except UnicodeDecodeError as error:
        told = f"give the decisions in UTF-8: what stands at byte {error.start} is something else"
        raise InvalidDecision(told, field="file") from error


def _list_from(text: str) -> list[dict[str, Any]]:
    found = deciding.json_from(text, "the decisions", "decisions")
    if not isinstance(found, list):
        raise InvalidDecision(f"give a list of decisions, such as {EXAMPLE}", field="decisions")
    return found
