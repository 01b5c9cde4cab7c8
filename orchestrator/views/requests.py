"""Requests that follow from rows: the message of a turn that ended once more, and a message into a run."""

from __future__ import annotations

from dataclasses import fields

from chordage.orchestrator.core import message
from chordage.orchestrator.core.agent import WhenBusy, WhileWaiting
from chordage.orchestrator.core.audit import Audited
from chordage.orchestrator.core.client_tools import from_stored
from chordage.orchestrator.core.errors import Conflict, NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.limits import TurnLimits
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.status import Disposition, RunStatus, TurnStatus
from chordage.orchestrator.core.stepping import Control, Stepped, StepTerms
from chordage.orchestrator.store import stepped, turns
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.views.runs import RunView

RETRIED = frozenset(
    {Disposition.FAILED, Disposition.CANCELLED, Disposition.EXPIRED, Disposition.REJECTED, Disposition.SUPERSEDED}
)


RETRY_SOURCE = "http"  # whichever way it is retried: a dedupe key is one of its source


def retry_of(store: Store, turn_id: str, *, space: str | None = None) -> TurnRequest:
    """The same message on the same thread, without the times that were over. One retry has one key: the same turn
    retried twice makes one new turn. Raises NotFound, and Conflict for a turn that need not be retried.
    """
    with store.read() as tx:
        return retry_request(tx, turn_id, space=space)


def retry_request(tx: Tx, turn_id: str, *, space: str | None) -> TurnRequest:
    """In a transaction that is open."""
    row = turns.details(tx, turn_id)
    terms = stepped.load(tx, turn_id) if row and row["control"] == Control.STEP else None
    if row is None or not message.holds(space, row["root_thread"] or row["thread_id"]):
        raise NotFound(f"there is no turn {turn_id!r}; `chordage turns` lists them")
    _check(row["status"], row["disposition"], row["parent_run"], turn_id)
    if row["fork_of"] is not None:  # a turn without its terms would carry out what the fork has not
        raise Conflict(f"turn {turn_id} is a fork: fork run {row['fork_of']} once more")
    return TurnRequest(
        message=Message(
            origin=Origin(row["origin"]), channel=row["channel"], sender=Sender(row["sender"]),
            thread_id=row["thread_id"], text=row["text"], meta=row["meta"],
        ),
        agent=row["agent"], strategy=row["strategy"], control=Control(row["control"]),
        step=None if terms is None else _terms(terms),
        group=Group(row["group"]), tenant=row["tenant"], source=RETRY_SOURCE, space=row["space"],
        client_tools=from_stored(row["client_tools"]),
        dedupe_key=f"retry:{turn_id}", coalesce_key=row["coalesce_key"], reply_target=row["reply_target"],
        limits=TurnLimits(
            max_rounds=row["max_rounds"],
            timeout=None if row["timeout_ms"] is None else row["timeout_ms"] / 1000,
        ),
    )  # fmt: skip


def steering_of(run: RunView, content: Message, *, source: str, space: str | None, key: str | None) -> TurnRequest:
    """A message into a run that is open, whatever its agent does with messages to a busy thread. Raises Conflict."""
    if run.status is RunStatus.DONE:
        raise Conflict(f"run {run.run_id} is done: send the message to its thread {run.thread_id} as a turn")
    if run.parent_run is not None:
        raise Conflict(f"run {run.run_id} is of a sub-agent: steer run {run.root_run}, at the top of its tree")
    return TurnRequest(
        message=content, agent=run.agent, group=run.group, source=source, space=space, when_busy=WhenBusy.STEER,
        while_waiting=WhileWaiting.HOLD, dedupe_key=key, audited=Audited.STEERED,
    )  # fmt: skip


def _terms(row: Stepped) -> StepTerms:
    return StepTerms(**{field.name: getattr(row, field.name) for field in fields(StepTerms)})


def _check(status: str, disposition: str | None, parent_run: str | None, turn_id: str) -> None:
    if status != TurnStatus.DONE.value:
        raise Conflict(f"turn {turn_id} is {status}: wait for its end, or cancel it")
    if disposition not in RETRIED:
        raise Conflict(f"turn {turn_id} is {disposition}: there is nothing to retry")
    if parent_run is not None:
        raise Conflict(f"turn {turn_id} is of a sub-agent: retry the turn of run {parent_run}")
