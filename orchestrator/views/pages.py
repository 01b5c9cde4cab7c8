"""Pages of turns, runs, threads and deliveries, the newest first, for readers over HTTP.

A page begins behind what the page before ended with, and that place is the key of a row: rows that come or go between
two pages neither repeat a row nor skip one. A page may be shorter than its limit while there is another: `next` says.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from chordage.orchestrator.core import message
from chordage.orchestrator.core.deliveries import DeliveryStatus
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import Usage, usage_from
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.status import RunStatus, TurnStatus
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.store import outbox, pages
from chordage.orchestrator.store import run_marks as run_mark_rows
from chordage.orchestrator.store import threads as thread_rows
from chordage.orchestrator.store import turns as turn_rows
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.store.pages import PageQuery
from chordage.orchestrator.views import threads
from chordage.orchestrator.views.conversion import view_of
from chordage.orchestrator.views.deliveries import DeliveryView
from chordage.orchestrator.views.deliveries import view_of_row as delivery_view
from chordage.orchestrator.views.threads import Remark, ThreadDetails, ThreadView
from chordage.orchestrator.views.turns import TurnLine, turn_line

V = TypeVar("V")
N = TypeVar("N")


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewPage(Generic[V, N]):
    """`next`: behind which the next page begins; None: this is the last."""

    data: Sequence[V]
    next: N | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLine:
    """A run in a list."""

    run_id: str
    thread_id: str
    turn_id: str
    agent: str
    group: Group
    strategy: str
    control: Control
    status: RunStatus
    reason: Reason | None  # why it ended, or waits
    code: str | None
    rounds: int
    usage: Usage  # with that of its sub-agents that have ended
    own_usage: Usage  # without it
    parent_run: str | None  # of a sub-agent
    root_run: str | None
    path: str | None
    started_at: datetime
    ended_at: datetime | None


def turn_page(store: Store, query: PageQuery, *, status: TurnStatus | None = None) -> ViewPage[TurnLine, str]:
    with store.read() as tx:
        page = pages.turn_page(tx, query, status=status)
    return ViewPage(data=[turn_line(row) for row in page.rows], next=page.next)


def run_page(store: Store, query: PageQuery, *, status: RunStatus | None = None) -> ViewPage[RunLine, str]:
    with store.read() as tx:
        page = pages.run_page(tx, query, status=status)
    return ViewPage(data=[_run_line(row) for row in page.rows], next=page.next)


def _run_line(row: Mapping[Any, Any]) -> RunLine:
    usage = usage_from(row)
    return view_of(RunLine, row, usage=usage, own_usage=usage - usage_from(row, "children_"))


def thread_page(
    store: Store,
    *,
    limit: int,
    space: str | None = None,
    agent: str | None = None,
    before: tuple[datetime, str] | None = None,
) -> ViewPage[ThreadView, tuple[datetime, str]]:
    """Those with the newest turns first."""
    with store.read() as tx:
        rows, following = thread_rows.latest(tx, limit=limit, space=space, agent=agent, before=before)
    return ViewPage(data=[threads.view_of_row(row) for row in rows], next=following)


def run_marks(store: Store, run_ids: Collection[str]) -> dict[str, Hashable]:
    """By run; a mark that is another says that a run at rest has changed, or its questions."""
    with store.read() as tx:
        return run_mark_rows.marks_of(tx, run_ids)


def delivery_page(
    store: Store,
    *,
    limit: int,
    status: DeliveryStatus | None = None,
    space: str | None = None,
    before: int | None = None,
) -> ViewPage[DeliveryView, int]:
    with store.read() as tx:
        rows, following = outbox.page(tx, limit=limit, status=status, space=space, before=before)
    return ViewPage(data=[delivery_view(row) for row in rows], next=following)


def thread_in_reach(store: Store, name: str, *, space: str | None, own: str) -> ThreadDetails:
    """The thread of this id or name, as `thread_named` finds it. Raises NotFound."""
    return threads.thread_details(store, thread_named(store, name, space=space, own=own))


def history_page(
    store: Store, name: str, *, limit: int, space: str | None, own: str, before: int | None = None
) -> ViewPage[Remark, int]:
    """The last messages and replies, oldest first. The next page is what was said before them."""
    remarks = threads.history(store, thread_named(store, name, space=space, own=own), limit=limit + 1, before=before)
    there_is_more = len(remarks) > limit
    shown = remarks[1:] if there_is_more else remarks
    return ViewPage(data=shown, next=shown[0].id if there_is_more else None)


def thread_named(store: Store, name: str, *, space: str | None, own: str) -> str:
    """The id of a thread that a caller gives by its id, or, of those in the space `own`, by its name. An id comes
    first: a thread that is called like the id of another one hides nothing. A caller with a `space` finds the threads
    of that space, and those of sub-agents below them. Raises NotFound.
    """
    with store.read() as tx:
        for candidate in dict.fromkeys((name, message.placed(own, name))):
            if _holds(tx, candidate, space):
                return candidate
    raise NotFound(f"there is no thread {name!r}; `chordage threads` lists them")


def _holds(tx: Tx, thread_id: str, space: str | None) -> bool:
    if not thread_rows.exists(tx, thread_id):
        return False
    return message.holds(space, thread_id) or message.holds(space, turn_rows.home_of_thread(tx, thread_id))
