"""`chordage channels`: the state of each channel of channels.toml."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chordage.workers.cli.context import command_settings, open_store
from chordage.workers.cli.output import json_option, print_json, print_table, say

if TYPE_CHECKING:
    from chordage.orchestrator.views.channels import ChannelView

EMPTY = "no channels; write [channels.NAME] with `plugin = ...` into channels.toml"
EXCERPT = 40  # characters of a refused message


@click.command()
@click.argument("name", required=False)
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Refused messages of each.")
@json_option
def channels(name: str | None, limit: int, as_json: bool) -> None:
    """List channels: how far each was read, what is wrong with it, and which messages were refused.

    With a NAME, this channel with its refused messages. Exit codes: 0; 1 if channels.toml is broken.
    """
    from datetime import UTC, datetime

    from chordage.orchestrator import views
    from chordage.orchestrator.core.errors import NotFound
    from chordage.workers.bootstrap import channels_from, room_from

    settings = command_settings()
    bound = channels_from(settings)
    with open_store(settings) as store:
        lines = views.channels(store, bound, room_from(settings), datetime.now(UTC), refusals=limit)
    if name is not None and name not in {line.name for line in lines}:
        raise NotFound(f"there is no channel {name!r}; there are: {', '.join(line.name for line in lines) or 'none'}")
    faults = [str(fault) for fault in bound.faults()]
    shown = [line for line in lines if name in {None, line.name}]
    if as_json:
        print_json({"channels": shown, "faults": faults})
    else:
        _print(shown, faults, with_refusals=name is not None)
    raise click.exceptions.Exit(1 if faults else 0)


def _print(shown: list[ChannelView], faults: list[str], *, with_refusals: bool) -> None:
    """Errors follow the table in whole lines: the table would cut them."""
    columns = ("channel", "plugin", "state", "polled", "turns", "again", "refused", "skipped", "next poll")
    rows = [
        (line.name, line.plugin, line.state, line.looked_at, line.taken, line.doubled, line.refused,
         line.passed_over, line.next_look)
        for line in shown
    ]  # fmt: skip
    print_table(columns, rows, empty=EMPTY)
    if with_refusals and any(line.refusals for line in shown):
        say("")
        refused = [(each.key, each.at, each.why, each.excerpt[:EXCERPT]) for line in shown for each in line.refusals]
        print_table(("key", "refused", "why", "excerpt"), refused)
    for line in shown:
        if line.error is not None:
            times = f" ({line.failures} times in a row)" if line.failures > 1 else ""
            say(f"{line.name}: {line.error.removeprefix(f'channel {line.name}: ')}{times}", err=True)
    for fault in faults:
        say(fault, err=True)
