"""`chordage why`: why something waits, who holds it, since when, until when, and the command that changes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from chordage.workers.cli.context import command_settings, open_store
from chordage.workers.cli.output import ago, json_option, print_json, print_table, say_lines, span

if TYPE_CHECKING:
    from chordage.config.settings import Settings
    from chordage.orchestrator.core.why.reasons import WaitReason
    from chordage.orchestrator.gateways.ports import Locks
    from chordage.orchestrator.store.database import Store
    from chordage.orchestrator.views import WaitSources, WhyView

COLUMNS = ("waits", "cause", "held by", "since", "until", "why")
EMPTY = "nothing waits"


@click.command()
@click.argument("some_id", metavar="[ID]", required=False)
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Rows, without an ID.")
@json_option
def why(some_id: str | None, limit: int, as_json: bool) -> None:
    """Say why something waits: who or what holds it, since when, until when, and what changes it.

    ID is a turn, a run, a thread, a call, a suspension (the first letters are enough) or the number of a delivery;
    `pulse:NAME` is a task, a chore or the will, `channel:NAME` a polled channel. Without an ID: everything that waits,
    oldest first.
    """
    from chordage.orchestrator import views

    settings = command_settings()
    with open_store(settings) as store:
        sources = sources_of(settings, store)
        if some_id is not None:
            view = views.why(sources, some_id)
            print_json(view) if as_json else say_lines(lines_of(view))
            return
        reasons = views.waiting(sources, limit=limit)
    if as_json:
        print_json(reasons)
    elif reasons and sys.stdout.isatty():  # a sentence is too long for a row of a table
        for number, reason in enumerate(reasons):
            say_lines([*([""] if number else []), *_short_lines(reason)], mark={1 if number else 0: "cyan"})
    else:
        print_table(COLUMNS, [_row(reason) for reason in reasons], empty=EMPTY)


def sources_of(settings: Settings, store: Store) -> WaitSources:
    """Redis is asked once, if one is set; without an answer the database has to do."""
    from chordage.orchestrator import views
    from chordage.orchestrator.core.leases import LeaseRules
    from chordage.workers.bootstrap import budgets_from

    leases = LeaseRules(
        seconds=settings.lease, beat=settings.beat, sweep=settings.sweep, poison_after=settings.poison_after
    )
    return views.WaitSources(
        store=store, now=datetime.now(UTC), budgets=budgets_from(settings), leases=leases, locks=_locks(settings)
    )


def _locks(settings: Settings) -> Locks:
    from chordage.orchestrator.gateways.absent import NoLocks

    if settings.redis is None:
        return NoLocks()
    from chordage.orchestrator.gateways.redis_direct import RedisHints
    from chordage.orchestrator.gateways.redis_locks import RedisLocks
    from chordage.workers.bootstrap import quick_redis_from

    client = quick_redis_from(settings)
    return RedisLocks(client, RedisHints(client), prefix=settings.prefix, lease=settings.lease, worker="")


def lines_of(view: WhyView) -> Iterator[str]:
    yield f"{view.kind.value:<8}  {view.id}"
    if view.reason is None:
        yield view.text
        return
    yield from _lines(view.reason)
    because = view.reason.because
    while because is not None:
        yield ""
        yield f"{because.kind.value} {because.id}:"
        yield from (f"  {line}" for line in _lines(because))
        because = because.because


def _lines(reason: WaitReason) -> Iterator[str]:
    yield reason.text
    yield f"cause     {reason.cause.value.replace('_', ' ')}"
    yield f"held by   {reason.owner}"
    yield f"since     {_moment(reason.since)}"
    yield f"until     {_moment(reason.until) if reason.until else '-'}"
    yield f"remedy    `{reason.remedy.command}`"


def why_line(reason: WaitReason) -> str:
    """For other commands: all of it in one line."""
    return f"{reason.text} ({_times(reason)}; `{reason.remedy.command}`)"


def _short_lines(reason: WaitReason) -> Iterator[str]:
    yield f"{reason.id}  {reason.kind.value}, {reason.cause.value.replace('_', ' ')}, {_times(reason)}"
    yield f"  {reason.text}"
    yield f"  held by {reason.owner}; `{reason.remedy.command}`"


def _times(reason: WaitReason) -> str:
    until = f", until {reason.until.astimezone():%Y-%m-%d %H:%M:%S}" if reason.until else ""
    return f"for {span(max(0.0, (datetime.now(UTC) - reason.since).total_seconds()))}{until}"


def _moment(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S} ({ago(at)})"


def _row(reason: WaitReason) -> tuple[object, ...]:
    return (
        f"{reason.kind.value} {reason.id}", reason.cause, reason.owner, reason.since, reason.until, reason.text,
    )  # fmt: skip
