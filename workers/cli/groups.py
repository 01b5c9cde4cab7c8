"""`chordage groups`: budgets, and what runs and waits within them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Dispatch
from chordage.workers.cli.output import json_option, print_json, print_table, say

if TYPE_CHECKING:
    from chordage.config.settings import Settings
    from chordage.orchestrator.views.groups import GroupView

COLUMNS = ("group", "budget", "from", "running", "free", "queued", "bound", "oldest", "tenants")
OF_GROUP = click.argument("group", type=click.Choice([str(one) for one in Group]))


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def groups(context: click.Context, as_json: bool) -> None:
    """Show the budget of each group, and what runs and waits within it."""
    if context.invoked_subcommand is None:
        found = _look()
        print_json(found) if as_json else print_table(COLUMNS, [_row(one) for one in found])


@groups.command("set")
@OF_GROUP
@click.argument("budget", type=click.IntRange(min=0), required=False)
@click.option("--unset", is_flag=True, help="The setting CHORDAGE_BUDGETS__GROUP decides again.")
def set_budget(group: str, budget: int | None, unset: bool) -> None:
    """Lay down how many runs of GROUP may be at work at once, over the whole fleet, from now on. 0 pauses it."""
    from chordage.orchestrator.store import groups as group_rows
    from chordage.workers.cli.opened import opened, settings_of_command

    if unset is (budget is not None):
        raise click.UsageError("give a number, or --unset to leave it to the setting")
    settings = settings_of_command()
    with opened(settings) as store, store.write() as tx:
        group_rows.set_budget(tx, Group(group), budget)
    _wake(settings, Group(group))
    (now,) = (one for one in _look() if one.group == group)
    told = f"budget {now.budget} (from {now.budget_from}), {now.running} running, {now.queued} queued"
    say(f"{group}: {told}")


def _wake(settings: Settings, group: Group) -> None:
    """Places may have become free, and no run that ends tells of them. Without a Redis there is no fleet to tell."""
    if settings.redis is not None:
        from chordage.tasks.courier import Courier
        from chordage.workers.app import make_app

        Courier(make_app(settings)).send([Dispatch(group=group)])


def _look() -> list[GroupView]:
    from datetime import UTC, datetime

    from chordage.orchestrator import views
    from chordage.workers.bootstrap import budgets_from, queue_bounds_from
    from chordage.workers.cli.opened import opened, settings_of_command

    settings = settings_of_command()
    with opened(settings) as store:
        budgets, bounds = budgets_from(settings), queue_bounds_from(settings)
        return views.groups(store, now=datetime.now(UTC), budgets=budgets, bounds=bounds)


def _row(one: GroupView) -> tuple[object, ...]:
    bound = one.bound.max_queued if one.bound else None
    queued = f"{one.queued}+" if one.queued_or_more else one.queued
    tenants = ", ".join(f"{of.tenant} {of.running} + {of.queued}" for of in one.tenants) or None
    return (
        one.group, one.budget, one.budget_from, one.running, one.free, queued, bound, one.waits_since, tenants,
    )  # fmt: skip
