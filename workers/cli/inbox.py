"""`chordage inbox`: what waits for a decision."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from chordage.orchestrator.core.approvals import Why
from chordage.workers.cli.output import json_option, print_json, print_table, say_lines

if TYPE_CHECKING:
    from chordage.orchestrator.views import OpenQuestion

COLUMNS = (
    "suspension",
    "asked",
    "expires",
    "why",
    "agent",
    "tool",
    "thread",
    "arguments",
    "prompt",
    "answer",
    "path",
    "root",
)
EMPTY = "nothing waits for a decision"


@click.command()
@click.option("--agent", help="Only of this agent.")
@click.option("--thread", "thread_id", metavar="ID", help="Only of this thread.")
@click.option("--run", "run_id", metavar="ID", help="Only of this run and the sub-agents below it.")
@click.option("--root", "root_thread", metavar="THREAD", help="Only of this thread and the sub-agents below it.")
@click.option("--why", type=click.Choice([str(one) for one in Why]), help="Only what was put aside for this reason.")
@click.option("--after", metavar="SUSPENSION", help="Only what was asked after this one: the next page.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@json_option
def inbox(
    *,
    agent: str | None,
    thread_id: str | None,
    run_id: str | None,
    root_thread: str | None,
    why: str | None,
    after: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List the calls that wait for a decision, over all threads, oldest first.

    `chordage approve ID` and `chordage deny ID` answer them. Of a run and a thread the first letters are enough.
    """
    from chordage.orchestrator import views
    from chordage.workers.cli.opened import opened, settings_of_command

    with opened(settings_of_command()) as store:
        found = views.inbox(
            store,
            limit=limit,
            agent=agent,
            thread_id=thread_id and views.full_id(store, views.IdKind.THREAD, thread_id),
            root_run=run_id and views.full_id(store, views.IdKind.RUN, run_id),
            root_thread=root_thread and views.full_id(store, views.IdKind.THREAD, root_thread),
            why=Why(why) if why else None,
            after=after,
        )
    if as_json:
        print_json(found)
    elif found and sys.stdout.isatty():
        for number, one in enumerate(found):
            say_lines([*([""] if number else []), *_lines(one)], mark={1 if number else 0: "cyan"})
    else:
        print_table(COLUMNS, [_row(one) for one in found], empty=EMPTY)


def _row(one: OpenQuestion) -> tuple[object, ...]:
    """For programs: everything there is, in one line."""
    from chordage.orchestrator.views import answers
    from chordage.workers.cli.showing_calls import short

    return (
        one.id, one.created_at, "overdue" if one.overdue else one.expires_at, one.why, one.agent, one.tool,
        one.thread_id, short(one.arguments), one.prompt, answers(one.schema), one.path, one.root_thread,
    )  # fmt: skip


def _lines(one: OpenQuestion) -> list[str]:
    """For people: a question is too long for a row of a table."""
    from chordage.orchestrator.views import answers
    from chordage.workers.cli.output import ago
    from chordage.workers.cli.showing_calls import expiry, indented, short, takes_a_plain_yes

    lines = [
        f"{one.id}  {one.why.value}, asked {ago(one.created_at)}{expiry(one)}",
        f"  {one.agent} wants {one.tool}  {short(one.arguments)}",
        *indented(one.prompt),
        f"  thread {one.thread_id}, run {one.run_id}",
        *([f"  for {one.path}, thread {one.root_thread}"] if one.root_thread != one.thread_id else []),
    ]
    if one.schema is not None:
        plain = "approve it, or " if takes_a_plain_yes(one.schema) else ""
        lines.append(f"  {plain}answer with --payload: {answers(one.schema)}")
    return lines
