"""What submit and invoke have in common: a message comes in, an answer goes out."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click

from chordage.config.settings import Settings
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.message import SELF_MADE, Bounds, Origin, Sender, TurnRequest, check
from chordage.orchestrator.core.reasons import DISPOSITION_OF
from chordage.orchestrator.core.status import Disposition
from chordage.orchestrator.core.text import loads_json
from chordage.orchestrator.views import TurnView
from chordage.workers.cli.output import print_json, say


class StrategyOption(click.Option):
    """Its help names all there are, also those of installed packages, which are looked for when somebody asks."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from chordage.orchestrator.strategies.loading import names

        self.help = f"How the turn is completed: {', '.join(names())}.  [default: the agent's]"
        return super().get_help_record(ctx)


SOURCE = "cli"
ANSWERED, NOT_ANSWERED, TIMED_OUT, INTERRUPTED = 0, 3, 4, 130


def request_of(settings: Settings, text: str, options: Mapping[str, Any]) -> TurnRequest:
    """What is wrong with a message is told before any service is asked or any database made."""
    from chordage.tasks.request import request_from

    fields = {name: value for name, value in options.items() if value is not None}
    fields |= {"text": text_from(text), "meta": meta_from(options["meta"])}
    fields["limits"] = {"max_rounds": fields.pop("max_rounds", None), "timeout": fields.pop("max_seconds", None)}
    fields["sender"] = sender_of(Origin(fields.setdefault("origin", Origin.INVOKE)))
    request = request_from(fields, source=SOURCE, space=None)
    bounds = Bounds(text_bytes=settings.max_text_bytes, meta_bytes=settings.max_meta_bytes)
    check(request, bounds, datetime.now(UTC))
    return request


def text_from(argument: str) -> str:
    """The message itself, or what standard input holds when it is `-`."""
    if argument != "-":
        return argument
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidMessage(f"text on standard input is not UTF-8 at byte {error.start}", field="text") from error


def meta_from(option: str | None) -> dict[str, Any]:
    if option is None:
        return {}
    try:
        meta = loads_json(option)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"--meta is not JSON: {error}", field="meta") from error
    if not isinstance(meta, dict):
        raise InvalidMessage(f'--meta must be a JSON object, such as {{"ticket": 7}}, not {option:.40}', field="meta")
    return meta


def sender_of(origin: Origin) -> Sender:
    """Whoever may use this machine's database is its owner; a task, chore or will is the agent's own."""
    return Sender.SELF if origin in SELF_MADE else Sender.OWNER


def _is_answered(turn: TurnView) -> bool:
    """A message that was taken into a run is answered by what that says at its end."""
    if turn.disposition is Disposition.STEERED and turn.reason is not None:
        return DISPOSITION_OF.get(turn.reason) is Disposition.ANSWERED
    return turn.disposition is Disposition.ANSWERED


def tell_end(turn: TurnView, *, as_json: bool, already_shown: str = "") -> int:
    """Print the answer, or why there is none. Returns the exit code."""
    answered = _is_answered(turn)
    if as_json:
        print_json(turn)
    elif answered and turn.answer and turn.answer != already_shown:
        say(turn.answer)
    if not answered or turn.code:
        say(f"chordage: turn {turn.turn_id} {turn.fate}", err=True)
    return ANSWERED if answered else NOT_ANSWERED
