"""How a call is put aside until somebody has decided: one transaction, in which the call and its question are rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from chordage.orchestrator.core.agent import OnUnknown, ToolMode
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.core.records import Call, NewCall, Run
from chordage.orchestrator.core.suspending import Question
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import approvals, calls, runs
from chordage.orchestrator.store.approvals import CallInQuestion
from chordage.orchestrator.store.database import Tx


def put_aside(
    rt: Runtime,
    call: Call,
    agent: str,
    token: str | None,
    question: Question,
    *,
    seen_lease: datetime | None = None,
    with_it: Callable[[Tx], None] | None = None,
) -> bool:
    """A call that has started asks. `seen_lease`: only while nobody has renewed it; then its holder, whose token this
    is, may still come with the result. `with_it`: what else is on record from the same moment on. False: it is settled,
    or not ours.
    """
    suspension_id = rt.new_id()
    sequential = is_sequential(rt, agent)

    def work(tx: Tx) -> bool:
        runs.mark_suspended(tx, call.run_id)
        if not calls.suspend(tx, call, token, suspension_id, seen_lease=seen_lease):
            return False
        if sequential:
            calls.park_behind(tx, call)
        about = CallInQuestion(
            call_id=call.id, run_id=call.run_id, thread_id=call.thread_id, agent=agent, step=call.step, tool=call.tool,
            arguments=call.arguments,
        )  # fmt: skip
        claim = token if seen_lease is not None else None
        approvals.ask(tx, suspension_id, about, question, rt.now(), about_claim=claim)
        if with_it is not None:
            with_it(tx)
        return True

    if not rt.store.insist(work):
        return False
    tell(rt, call.run_id, call.id, suspension_id, call.tool, question)
    return True


def put_aside_here(tx: Tx, rt: Runtime, call: Call, agent: str, question: Question) -> bool:
    """A call that is in nobody's hand, in a transaction that has locked its run."""
    suspension_id = rt.new_id()
    if not calls.suspend(tx, call, None, suspension_id):
        return False
    about = CallInQuestion(
        call_id=call.id, run_id=call.run_id, thread_id=call.thread_id, agent=agent, step=call.step, tool=call.tool,
        arguments=call.arguments,
    )  # fmt: skip
    approvals.ask(tx, suspension_id, about, question, rt.now())
    return True


def ask_before(tx: Tx, rt: Runtime, run: Run, step: int, asked: NewCall) -> None:
    """A call that was put aside before it started; its row has been written."""
    assert asked.question is not None
    assert asked.suspension_id is not None
    about = CallInQuestion(
        call_id=asked.id, run_id=run.id, thread_id=run.thread_id, agent=run.agent, step=step, tool=asked.tool,
        arguments=asked.arguments,
    )  # fmt: skip
    approvals.ask(tx, asked.suspension_id, about, asked.question, rt.now())


def tell(rt: Runtime, run_id: str, call_id: str, suspension_id: str, tool: str, question: Question) -> None:
    """As soon as it is asked, not when the slowest call of the round has come back."""
    rt.events.emit(run_id, "call.suspended", call=call_id, suspension=suspension_id, tool=tool, prompt=question.prompt)


def is_sequential(rt: Runtime, agent: str) -> bool:
    """Whether its calls come one after the other, and one that waits holds up those behind it."""
    try:
        return rt.agents.get(agent).tool_mode is ToolMode.SEQUENTIAL
    except UserError:
        return False


def asks_about_unknown(rt: Runtime, agent: str) -> bool:
    """Whether a person is asked what became of an unsafe call. An agent that cannot be loaded cannot have refused."""
    try:
        return rt.agents.get(agent).on_unknown is OnUnknown.ASK
    except UserError:
        return True
