"""`chordage hooks`: the webhooks of the room with their counts, and a delivery to try one with."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from chordage.workers.cli.context import command_settings
from chordage.workers.cli.output import json_option, print_json, print_table, say

if TYPE_CHECKING:
    from chordage.config.settings import Settings
    from chordage.orchestrator.core.webhooks import WebhookBinding
    from chordage.orchestrator.gateways.webhooks.bindings import HooksFile
    from chordage.orchestrator.gateways.webhooks.stats import DeliveryCounts

COLUMNS = ("hook", "method", "path", "signature", "agent", "accepted", "refused", "last", "last turn")
EMPTY = "no webhooks here; a [hooks.NAME] table in hooks.toml with `path` and `signature` makes one"


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def hooks(ctx: click.Context, as_json: bool) -> None:
    """List the webhooks of the room, with their accepted and refused deliveries.

    hooks.toml is read by this command, with the environment of this shell. Exit code 1 if something in it is broken.
    """
    if ctx.invoked_subcommand is None:
        raise click.exceptions.Exit(_list(as_json=as_json))


@hooks.command()
@click.argument("name")
@click.option("--text", help="The text, put into the field where the hook reads it.")
@click.option("--thread", help="The thread, if the hook reads one from the payload.")
@click.option("--body", type=click.File("rb"), help="The whole body from a file (or - for standard input) instead.")
@click.option("--id", "delivery", metavar="ID", help="The id of the delivery.  [default: a new one]")
@click.option("--url", help="The server.  [default: the one of this folder]")
@json_option
def send(name: str, text: str | None, thread: str | None, body: Any, as_json: bool, **how: str | None) -> None:
    """Sign a delivery as the sender of hook NAME would, and post it to the server.

    Exit code 0 if it was accepted, 1 if it was refused.
    """
    from chordage.workers import webhooks

    if (text is None) == (body is None):
        raise click.UsageError("give --text or --body, one of the two")
    if how["delivery"] and not (how["delivery"].isascii() and how["delivery"].isprintable()):
        raise click.UsageError("--id goes into a header: give visible ASCII characters")
    settings = command_settings()
    binding = webhooks.binding_of(settings, name)
    content = body.read() if body is not None else webhooks.body_of(binding, text or "", thread)
    sent = webhooks.send(settings, binding, content, delivery=how["delivery"], url=how["url"])
    print_json(sent) if as_json else say(f"{sent.status} {sent.detail}")
    raise click.exceptions.Exit(0 if sent.status < 300 else 1)


def _list(*, as_json: bool) -> int:
    from chordage.config import settings as config
    from chordage.orchestrator.gateways.webhooks import bindings

    settings = command_settings()
    environ = config.environment()
    room = bindings.read(settings.room_path, environ)
    faults = [str(fault) for fault in bindings.faults(settings.room_path, environ)]
    stats = _stats(settings, room)
    if as_json:
        print_json({"hooks": [_plain(binding, stats.get(binding.name)) for binding in room.bindings], "faults": faults})
    else:
        rows = [_row(binding, stats.get(binding.name)) for binding in room.bindings]
        nothing = (None,) * (len(COLUMNS) - 4)
        rows += [(hook.name, None, hook.path, "broken", *nothing) for hook in room.broken]
        print_table(COLUMNS, rows, empty=EMPTY)
    for fault in faults:
        say(f"chordage: {fault}", err=True)
    return 1 if faults else 0


def _stats(settings: Settings, room: HooksFile) -> dict[str, DeliveryCounts]:
    """By name. Redis has the counts; without it there are none."""
    from redis.exceptions import RedisError

    from chordage.workers.webhooks import counts_of

    if settings.redis is None:
        return {}
    counts = counts_of(settings)
    try:
        return {binding.name: counts.of(binding.name) for binding in room.bindings}
    except RedisError as error:
        say(f"chordage: the counts are in Redis, which does not answer ({error})", err=True)
        return {}


def _row(binding: WebhookBinding, counted: DeliveryCounts | None) -> tuple[object, ...]:
    about = (binding.name, binding.method, binding.path, binding.seal.form, binding.agent)
    if counted is None:
        return (*about, None, None, None, None)
    counts = counted.as_json()
    refused = " ".join(f"{reason}={count}" for reason, count in counts["refused"].items())
    last = counts["last"] or {}
    at = datetime.fromisoformat(last["at"]) if last else None
    return (*about, counts["accepted"], refused or 0, at, last.get("turn"))


def _plain(binding: WebhookBinding, counted: DeliveryCounts | None) -> dict[str, Any]:
    return {
        "name": binding.name,
        "method": binding.method,
        "path": binding.path,
        "signature": binding.seal.form,
        "agent": binding.agent,
        "origin": binding.origin,
        "sender": binding.sender,
        "counts": None if counted is None else counted.as_json(),
    }
