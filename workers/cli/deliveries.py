"""`chordage deliveries`: replies on their way out, dead letters, and the secret of a receiver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.deliveries import DeliveryStatus
from chordage.workers.cli.context import command_settings, open_runtime, open_store
from chordage.workers.cli.output import json_option, print_json, print_table, say

if TYPE_CHECKING:
    from chordage.orchestrator.views.deliveries import DeliveryView

COLUMNS = ("delivery", "state", "to", "turn", "attempts", "when", "error")


@click.group(invoke_without_command=True)
@click.option("--dead", "which", flag_value="dead", help="Only dead letters: those that were given up.")
@click.option("--pending", "which", flag_value="pending", help="Only those that are still to be sent.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@json_option
@click.pass_context
def deliveries(ctx: click.Context, which: str | None, limit: int, as_json: bool) -> None:
    """List replies to webhooks and channels, newest first.

    `chordage deliveries retry ID` sends a dead letter again.
    """
    if ctx.invoked_subcommand is not None:
        return
    from chordage.orchestrator import views

    with open_store(command_settings()) as store:
        rows = views.deliveries(store, status=DeliveryStatus(which) if which else None, limit=limit)
    if as_json:
        print_json(rows)
    else:
        print_table(COLUMNS, [_row(row) for row in rows], empty=f"no {which} deliveries" if which else "no deliveries")


def _row(delivery: DeliveryView) -> tuple[object, ...]:
    state = "sending" if delivery.in_hand else delivery.status.value
    when = delivery.sent_at or delivery.dead_at or delivery.next_at
    return (delivery.id, state, delivery.to, delivery.turn_id, delivery.attempts, when, delivery.error)


@deliveries.command()
@click.argument("url")
def secret(url: str) -> None:
    """Print the secret with which the receiver of replies at URL verifies them.

    It is derived from CHORDAGE_WEBHOOK_SECRET and the host and port of URL. If the setting holds several secrets, there
    is one line for each: give the receiver the first.
    """
    import base64

    from chordage.orchestrator.core.deliveries import check_target
    from chordage.orchestrator.core.errors import ConfigError
    from chordage.workers.bootstrap import web_hooks_from

    check_target({"url": url})
    secrets = web_hooks_from(command_settings()).secrets_for(url)
    if not secrets:
        raise ConfigError("CHORDAGE_WEBHOOK_SECRET is not set, so replies are not signed: set it for all workers")
    for key in secrets:
        say(f"whsec_{base64.b64encode(key).decode()}")


@deliveries.command()
@click.argument("number", metavar="ID", type=int, required=False)
@click.option("--all-dead", is_flag=True, help="All dead letters.")
@json_option
def retry(number: int | None, all_dead: bool, as_json: bool) -> None:
    """Send dead letters again. Their keys stay the same, so that a receiver recognises a repetition."""
    if (number is None) != all_dead:
        raise click.UsageError("give the ID of a dead letter, or --all-dead")
    from chordage.orchestrator import stages

    with open_runtime(command_settings(), with_redis=False) as rt:
        again = stages.retry_dead(rt, number, by=CLI)
    if as_json:
        print_json({"deliveries": again})
    else:
        what = "dead letter is" if len(again) == 1 else "dead letters are"
        say(f"{len(again)} {what} due again")
