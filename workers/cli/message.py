"""What `submit` and `invoke` share: reading a message from the command line, and printing the end of its turn."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.message import SELF_MADE, Bounds, Origin, Sender, TurnRequest, check
from chordage.orchestrator.core.reasons import DISPOSITION_OF
from chordage.orchestrator.core.status import Disposition
from chordage.orchestrator.core.text import loads_json
from chordage.workers.cli.output import print_json, say

if TYPE_CHECKING:
    from chordage.config.settings import Settings
    from chordage.orchestrator.views import TurnView

SOURCE = "cli"  # what messages and decisions of commands are stored with
ANSWERED, NOT_ANSWERED = 0, 3  # exit codes


class StrategyOption(click.Option):
    """Its help lists all strategies, also those of installed packages, which are looked up only for the help."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from chordage.orchestrator.strategies.loading import names

        self.help = f"How the run proceeds: {', '.join(names())}.  [default: the agent's]"
        return super().get_help_record(ctx)


def request_of(settings: Settings, text: str, options: Mapping[str, Any]) -> TurnRequest:
    """Mistakes in a message are reported before a service is asked or a database is created."""
    from chordage.tasks.schema import request_from

    fields = {name: value for name, value in options.items() if value is not None}
    fields |= {"text": text_from(text), "meta": _meta_from(options["meta"])}
    fields["limits"] = {"max_rounds": fields.pop("max_rounds", None), "timeout": fields.pop("max_seconds", None)}
    # Who may use the database of this machine is its owner; tasks, chores and the will come from the agent itself.
    origin = Origin(fields.setdefault("origin", Origin.INVOKE))
    fields["sender"] = Sender.SELF if origin in SELF_MADE else Sender.OWNER
    request = request_from(fields, source=SOURCE, space=None)
    bounds = Bounds(text_bytes=settings.max_text_bytes, meta_bytes=settings.max_meta_bytes)
    check(request, bounds, datetime.now(UTC))
    return request


def text_from(argument: str) -> str:
    """The message itself, or standard input for `-`."""
    if argument != "-":
        return argument
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidMessage(f"text on standard input is not UTF-8 at byte {error.start}", field="text") from error


def _meta_from(option: str | None) -> dict[str, Any]:
    if option is None:
        return {}
    try:
        meta = loads_json(option)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"--meta is not JSON: {error}", field="meta") from error
    if not isinstance(meta, dict):
        raise InvalidMessage(f'--meta must be a JSON object, such as {{"ticket": 7}}, not {option:.40}', field="meta")
    return meta


def print_end(turn: TurnView, *, as_json: bool, already_shown: str = "") -> int:
    """Print the answer, or why there is none. Returns the exit code."""
    answered = turn.disposition is Disposition.ANSWERED
    if turn.disposition is Disposition.STEERED and turn.reason is not None:  # answered by the end of that run
        answered = DISPOSITION_OF.get(turn.reason) is Disposition.ANSWERED
    if as_json:
        print_json(turn)
    elif answered and turn.answer and turn.answer != already_shown:
        say(turn.answer)
    if not answered or turn.code:
        say(f"chordage: turn {turn.turn_id} {turn.fate}", err=True)
    return ANSWERED if answered else NOT_ANSWERED
