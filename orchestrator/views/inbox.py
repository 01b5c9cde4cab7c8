"""The inbox: every question about a call that nobody has answered yet, over all threads, oldest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chordage.orchestrator.core import kinship, spaces
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.suspending import OnExpiry, ResumeMode, Why
from chordage.orchestrator.store import approvals, runs
from chordage.orchestrator.store.approvals import SuspensionRow
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.views.rows import word


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenQuestion:
    id: str  # of the suspension
    call_id: str
    run_id: str
    thread_id: str
    agent: str
    tool: str
    arguments: dict[str, Any]
    why: Why
    prompt: str
    schema: dict[str, Any] | None  # what an answer has to look like
    resume_mode: ResumeMode
    created_at: datetime
    expires_at: datetime | None
    on_expiry: OnExpiry
    root_run: str  # of the tree, if a sub-agent asks; else its own
    root_thread: str
    path: str  # the agents from the root down to the one that asks
    overdue: bool  # it was to be answered by `expires_at`, and stays open until somebody does


def inbox(
    store: Store,
    *,
    limit: int = 50,
    agent: str | None = None,
    thread_id: str | None = None,
    run_id: str | None = None,
    root_thread: str | None = None,
    root_run: str | None = None,
    why: Why | None = None,
    after: str | None = None,
    space: str | None = None,
) -> list[OpenQuestion]:
    """What people are asked; with `why` child, what waits for sub-agents. `root_thread`, `root_run`: of that tree.
    `space`: of a caller, to whom the questions of its own threads are shown, and of sub-agents below them.

    The next page is what comes after the last question of this one; it may have been answered meanwhile.
    """
    with store.read() as tx:
        mark = None
        if after is not None:
            last = approvals.load(tx, after)
            if last is None or not _is_in(tx, last.run_id, space):
                raise NotFound(f"leave `after` out to start again: there is no suspension {after!r}")
            mark = (last.created_at, last.id)
        rows = approvals.list_open(
            tx, limit=limit, agent=agent, thread_id=thread_id, run_id=run_id, root_thread=root_thread,
            root_run=root_run, why=why, after=mark, space=space,
        )  # fmt: skip
    return [question_from(row) for row in rows]


def _is_in(tx: Tx, run_id: str, space: str | None) -> bool:
    run = runs.load(tx, run_id)
    return run is not None and spaces.holds(space, kinship.home_of(run.thread_id, run.kin))


def question_from(row: SuspensionRow) -> OpenQuestion:
    values = dict(row)
    overdue = values.pop("escalated_at") is not None
    kinds = {"why": Why, "resume_mode": ResumeMode, "on_expiry": OnExpiry}
    own = {"root_run": values["run_id"], "root_thread": values["thread_id"], "path": values["agent"]}
    values |= {name: values[name] or of_root for name, of_root in own.items()}
    return OpenQuestion(
        **{**values, **{name: word(kind, values[name]) for name, kind in kinds.items()}}, overdue=overdue
    )


def schema_asked(store: Store, target: str) -> dict[str, Any] | None:
    """What the answer to this suspension, or to the newest of this call, has to look like. None: anything will do."""
    with store.read() as tx:
        found = approvals.find(tx, target)
    return found.schema if found else None
