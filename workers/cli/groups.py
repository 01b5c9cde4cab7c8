"""`chordage groups`: budgets, and what runs and waits within them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Dispatch
from chordage.workers.cli.context import command_settings, open_store, send
from chordage.workers.cli.output import json_option, print_json, print_table, say

if TYPE_CHECKING:
    from chordage.config.settings import Settings
    from chordage.orchestrator.views.groups import GroupView

COLUMNS = ("group", "budget", "from", "running", "free", "queued", "bound", "oldest", "tenants")


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def groups(context: click.Context, as_json: bool) -> None:
    """Show the budget of each group, and what runs and waits within it."""
    if context.invoked_subcommand is None:
        views = _load(command_settings())
        print_json(views) if as_json else print_table(COLUMNS, [_row(view) for view in views])


@groups.command("set")
@click.argument("group", type=click.Choice([str(group) for group in Group]))
@click.argument("budget", type=click.IntRange(min=0), required=False)
@click.option("--unset", is_flag=True, help="Use the setting CHORDAGE_BUDGETS__GROUP again.")
def set_budget(group: str, budget: int | None, unset: bool) -> None:
    """Set how many runs of GROUP may work at once, over the whole fleet, from now on. 0 pauses it."""
    from datetime import UTC, datetime

    from chordage.orchestrator.core.audit import CLI, Audited
    from chordage.orchestrator.store import audit
    from chordage.orchestrator.store import groups as group_rows

    if unset is (budget is not None):
        raise click.UsageError("give a number, or --unset to use the setting")
    settings = command_settings()
    with open_store(settings) as store, store.write() as tx:
        group_rows.lock(tx, Group(group))
        change = {"before": group_rows.budgets(tx).get(Group(group)), "budget": budget}
        group_rows.set_budget(tx, Group(group), budget)
        audit.record(tx, CLI, Audited.BUDGET_SET, group, now=datetime.now(UTC), detail=change)
    send(settings, [Dispatch(group=Group(group))])  # a raised budget lets queued turns start
    (view,) = (view for view in _load(settings) if view.group == group)
    source = f"budget {view.budget} (from {view.budget_from})"
    say(f"{group}: {source}, {view.running} running, {view.queued} queued")


def _load(settings: Settings) -> list[GroupView]:
    from datetime import UTC, datetime

    from chordage.orchestrator import views
    from chordage.workers.bootstrap import budgets_from, queue_bounds_from

    with open_store(settings) as store:
        budgets, bounds = budgets_from(settings), queue_bounds_from(settings)
        return views.groups(store, now=datetime.now(UTC), budgets=budgets, bounds=bounds)


def _row(view: GroupView) -> tuple[object, ...]:
    bound = view.bound.max_queued if view.bound else None
    queued = f"{view.queued}+" if view.queued_or_more else view.queued
    tenants = ", ".join(f"{tenant.tenant} {tenant.running} + {tenant.queued}" for tenant in view.tenants) or None
    return (
        view.group, view.budget, view.budget_from, view.running, view.free, queued, bound, view.waits_since, tenants,
    )  # fmt: skip
