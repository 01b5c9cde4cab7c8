"""`chordage prune`: delete turns that ended long ago, with everything that is stored about them."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.status import Disposition
from chordage.workers.cli.context import command_settings, open_runtime
from chordage.workers.cli.output import json_option, print_json, print_table, say

if TYPE_CHECKING:
    from collections import Counter

UNITS = {"d": "days", "h": "hours", "w": "weeks"}
LONGEST = timedelta(days=36_500)
EVERY = 5.0  # seconds between two lines of progress


def _age(_ctx: click.Context, _param: click.Parameter, value: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,7})([dhw])", value)
    if match is None or (age := timedelta(**{UNITS[match[2]]: int(match[1])})) > LONGEST:
        raise click.BadParameter(f"{value!r} is no age: write it as 90d, 12w or 36h, up to 36500d")
    return age


@click.command()
@click.option("--older-than", callback=_age, required=True, metavar="AGE", help="Since their end, such as 90d.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(sorted(Disposition)), help="Only turns that ended so."
)
@click.option("--dry-run", is_flag=True, help="Count, and delete nothing.")
@json_option
def prune(older_than: timedelta, states: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Delete turns that ended long ago, with everything that is stored about them.

    A turn stays while something needs it: an open run, a delivery, a fork, the prompt of a live thread. Turns with a
    dedupe key stay for CHORDAGE_DEDUPE_KEEP_DAYS at least. Safe while the fleet works, and at any time again.
    """
    from chordage.orchestrator import stages
    from chordage.orchestrator.core.pruning import limits_for

    with open_runtime(command_settings(), with_redis=False) as rt:
        dispositions = frozenset(map(Disposition, states))
        limits = limits_for(rt.now(), older_than=older_than, keep_keys=rt.dedupe_keep, dispositions=dispositions)
        if dry_run:
            pruned = stages.count_old_turns(rt, limits)
        else:
            pruned = stages.prune(rt, limits, by=CLI, inform=_Progress())
    if as_json:
        print_json({"before": limits.before, "deleted": not dry_run, "rows": dict(pruned.rows)})
        return
    what = "would be deleted" if dry_run else "were deleted"
    say(f"{pruned.rows.get('turns', 0)} turns that ended before {limits.before:%Y-%m-%d %H:%M} UTC {what}")
    if pruned.rows:
        print_table(("table", "rows"), sorted(pruned.rows.items()))


class _Progress:
    """A line now and then."""

    def __init__(self) -> None:
        self._next = time.monotonic() + EVERY

    def __call__(self, rows: Counter[str]) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            say(f"{rows['turns']} turns deleted so far", err=True)
