"""`chordage deliveries`: replies on their way out, and those that were given up."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from chordage.orchestrator.core.deliveries import DeliveryStatus
from chordage.workers.cli.output import ago, json_option, print_json, print_table, say

if TYPE_CHECKING:
    from chordage.orchestrator.views.deliveries import DeliveryView

COLUMNS = ("delivery", "state", "to", "turn", "attempts", "when", "error")


@click.group(invoke_without_command=True)
@click.option("--dead", "which", flag_value="dead", help="Only dead letters: those that were given up.")
@click.option("--pending", "which", flag_value="pending", help="Only those that are still to leave.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@json_option
@click.pass_context
def deliveries(ctx: click.Context, which: str | None, limit: int, as_json: bool) -> None:
    """List replies that leave for web hooks and channels, newest first.

    `chordage deliveries retry ID` sends a dead letter again.
    """
    if ctx.invoked_subcommand is not None:
        return
    from chordage.orchestrator import views
    from chordage.workers.cli.opened import opened, settings_of_command

    with opened(settings_of_command()) as store:
        found = views.deliveries(store, status=DeliveryStatus(which) if which else None, limit=limit)
    if as_json:
        print_json(found)
    else:
        print_table(COLUMNS, [_row(one) for one in found], empty=f"no {which} deliveries" if which else "no deliveries")


def _row(one: DeliveryView) -> tuple[object, ...]:
    state = "in hand" if one.in_hand else one.status.value
    when = one.sent_at or one.dead_at or one.next_at
    told = ago(when) if when and sys.stdout.isatty() else when
    return (one.id, state, one.to, one.turn_id, one.attempts, told, one.error)


@deliveries.command()
@click.argument("url")
def secret(url: str) -> None:
    """Print the secret by which the receiver of replies at URL verifies them.

    It is that of its host and port, made of CHORDAGE_WEBHOOK_SECRET. While that holds several, one line for each: tell
    the receiver the first.
    """
    import base64

    from chordage.orchestrator.core.deliveries import check_target
    from chordage.orchestrator.core.errors import ConfigError
    from chordage.workers.bootstrap import web_hooks_from
    from chordage.workers.cli.opened import settings_of_command

    check_target({"url": url})
    made = web_hooks_from(settings_of_command()).secrets_for(url)
    if not made:
        raise ConfigError("CHORDAGE_WEBHOOK_SECRET is not set, so replies are not signed: set it for all workers")
    for one in made:
        say(f"whsec_{base64.b64encode(one).decode()}")


@deliveries.command()
@click.argument("number", metavar="ID", type=int, required=False)
@click.option("--all-dead", is_flag=True, help="All dead letters.")
@json_option
def retry(number: int | None, all_dead: bool, as_json: bool) -> None:
    """Send dead letters again, with their old keys: a receiver that has had one knows it."""
    if (number is None) != all_dead:
        raise click.UsageError("give the ID of a dead letter, or --all-dead")
    from chordage.orchestrator import stages
    from chordage.workers.bootstrap import runtime_from
    from chordage.workers.cli.opened import check_database, settings_of_command

    settings = settings_of_command()
    rt = runtime_from(settings, with_redis=False)
    try:
        check_database(settings, rt.store)
        again = stages.retry_dead(rt, number)
    finally:
        rt.store.close()
    if as_json:
        print_json({"deliveries": again})
    else:
        what = "dead letter is" if len(again) == 1 else "dead letters are"
        say(f"{len(again)} {what} due again")
