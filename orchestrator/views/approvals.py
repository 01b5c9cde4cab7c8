"""Questions about calls: those that wait for a decision (the inbox), and those of a run with their answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chordage.orchestrator.core import message
from chordage.orchestrator.core.approvals import Action, ClosedQuestion, OnExpiry, ResumeMode, SuspensionStatus, Why
from chordage.orchestrator.core.errors import Conflict, NotFound
from chordage.orchestrator.core.records import Call
from chordage.orchestrator.core.text import clean_text
from chordage.orchestrator.store import approvals, calls, runs
from chordage.orchestrator.store.approvals import SuspensionRow
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.views.conversion import view_of

ANSWER = "answer_"  # begins the columns of the answer in a row of a question with its answer


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
    schema: dict[str, Any] | None  # of an answer
    resume_mode: ResumeMode
    created_at: datetime
    expires_at: datetime | None
    on_expiry: OnExpiry
    root_run: str  # the top of the tree, if a sub-agent asks; else its own run
    root_thread: str
    path: str  # the agents from the root down to the one that asks
    overdue: bool  # `expires_at` has passed, and the question stays open
    sent_by: str | None = None  # the key, and the user, that sent the message; a call of `client_tool` waits for it


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerView:
    id: str
    action: Action
    payload: Any
    edited_args: dict[str, Any] | None
    reason: str | None
    source: str  # the way it came in
    decided_by: str  # the id of a key, or `local`, `cli` or `celery`
    created_at: datetime
    applied_at: datetime | None  # when the run resumed with it

    @property
    def who(self) -> str:
        return self.source if self.decided_by == self.source else f"{self.decided_by} ({self.source})"


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionView:
    id: str
    why: Why
    prompt: str
    schema: dict[str, Any] | None
    resume_mode: ResumeMode
    status: SuspensionStatus
    created_at: datetime
    expires_at: datetime | None
    on_expiry: OnExpiry
    overdue: bool
    answer: AnswerView | None

    @property
    def is_child(self) -> bool:
        """The call waits for a sub-agent, not for a person."""
        return self.why is Why.CHILD


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
    """The open questions to people, over all threads, oldest first; with `why=child`, the calls that wait for
    sub-agents. `root_thread` and `root_run` select a tree. A caller with a `space` sees the questions of its own
    threads and of the sub-agents below them.

    The next page is what comes after the last question of this one, also if that has been answered meanwhile.
    """
    with store.read() as tx:
        position = None
        if after is not None:
            last = approvals.load(tx, after)
            if last is None or not _is_in_space(tx, last.run_id, space):
                raise NotFound(f"leave `after` out to start again: there is no suspension {after!r}")
            position = (last.created_at, last.id)
        rows = approvals.list_open(
            tx, limit=limit, agent=agent, thread_id=thread_id, run_id=run_id, root_thread=root_thread,
            root_run=root_run, why=why, after=position, space=space,
        )  # fmt: skip
    return [open_question(row) for row in rows]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionState:
    """A question, which may be answered by now. `is_open`: it waits for an answer."""

    status: SuspensionStatus
    is_open: bool
    question: OpenQuestion


def question(store: Store, target: str, *, space: str | None = None) -> QuestionState:
    """The question with this id, or the newest about this call."""
    with store.read() as tx:
        suspension = approvals.find(tx, target)
        row = None
        if suspension is not None and _is_in_space(tx, suspension.run_id, space):
            row = approvals.with_arguments(tx, suspension.id)
    if row is None:
        raise NotFound(f"there is no question {target!r}; `chordage inbox` lists those that are open")
    status = SuspensionStatus(row["status"])
    return QuestionState(status=status, is_open=status is SuspensionStatus.OPEN, question=open_question(row))


def open_question_by_id(store: Store, suspension_id: str, *, space: str | None = None) -> OpenQuestion:
    """One open question. Raises NotFound, or Conflict if it is not open any more."""
    with store.read() as tx:
        rows = approvals.list_open(tx, limit=1, suspension_id=suspension_id, space=space)
        known = None if rows else approvals.load(tx, suspension_id)
        if known is not None and not _is_in_space(tx, known.run_id, space):
            known = None
        closed = approvals.closed(tx, suspension_id) if known is not None else None
    if rows:
        return open_question(rows[0])
    if closed is None:
        raise NotFound(
            f"there is no suspension {suspension_id!r}; `chordage inbox` lists what waits. "
            "The questions of an erased or pruned thread are gone with it"
        )
    raise Conflict(f"suspension {suspension_id} {closed.fate}; its call is {closed.call_status.value}")


def closed_questions(store: Store, suspension_ids: Iterable[str], *, space: str | None = None) -> list[ClosedQuestion]:
    """Those of these that are not open any more, and are still stored."""
    with store.read() as tx:
        known = [approvals.load(tx, suspension_id) for suspension_id in suspension_ids]
        return [
            approvals.closed(tx, one.id)
            for one in known
            if one is not None and one.status is not SuspensionStatus.OPEN and _is_in_space(tx, one.run_id, space)
        ]


def count_open_questions(store: Store, *, limit: int, space: str | None = None) -> int:
    """Of people, up to `limit`."""
    with store.read() as tx:
        return approvals.count_open(tx, limit=limit, space=space)


def _is_in_space(tx: Tx, run_id: str, space: str | None) -> bool:
    run = runs.load(tx, run_id)
    return run is not None and message.holds(space, run.home_thread)


def open_question(row: SuspensionRow) -> OpenQuestion:
    own = {"root_run": row["run_id"], "root_thread": row["thread_id"], "path": row["agent"]}
    root = {name: row[name] or of_run for name, of_run in own.items()}
    return view_of(OpenQuestion, row, overdue=row["escalated_at"] is not None, **root)


def schema_asked(store: Store, target: str) -> dict[str, Any] | None:
    """The schema of an answer to this suspension, or to the newest suspension of this call. None: any answer fits."""
    with store.read() as tx:
        suspension = approvals.find(tx, target)
    return suspension.schema if suspension else None


def agents_asking(store: Store, targets: Iterable[str], *, space: str | None) -> set[str]:
    """The agents that these questions, or calls, belong to; that of a sub-agent belongs to the agent at its root. What
    lies outside the space is left out.
    """
    agents = set()
    with store.read() as tx:
        for target in targets:
            about = approvals.find(tx, target) or calls.load(tx, target)
            run = runs.load(tx, about.run_id) if about else None
            if run is not None and message.holds(space, run.home_thread):
                agents.add(run.kin.path.partition("/")[0] if run.kin else run.agent)
    return agents


def are_for_callers(store: Store, targets: Iterable[str]) -> bool:
    """Whether all of these questions, or calls, wait for the result of a tool that their caller carries out."""
    with store.read() as tx:
        asked = [approvals.find(tx, target) if clean_text(target) == target else None for target in targets]
    return all(one is not None and one.why is Why.CLIENT for one in asked)


def about_calls(tx: Tx, of_calls: Iterable[Call]) -> dict[str, QuestionView]:
    """The newest question about each of these calls, by the id of the suspension."""
    return by_id(tx, [call.suspension_id for call in of_calls if call.suspension_id is not None])


def by_id(tx: Tx, suspension_ids: Collection[str]) -> dict[str, QuestionView]:
    return {row["id"]: _question(row) for row in approvals.with_answers(tx, suspension_ids)}


def _question(row: SuspensionRow) -> QuestionView:
    overdue = row["status"] == SuspensionStatus.OPEN.value and row["escalated_at"] is not None
    columns = {name.removeprefix(ANSWER): row[name] for name in row if name.startswith(ANSWER)}
    answer = None if columns["id"] is None else view_of(AnswerView, columns)
    return view_of(QuestionView, row, overdue=overdue, answer=answer)
