"""How a call becomes a child run, and how the child's end becomes the answer to the call.

The call is suspended like any that waits for a decision, and the child's turn is admitted in the same transaction. The
transaction that ends the child answers the call. At no moment is one done and the other not, so nothing has to be
delivered between them and nothing can be lost.

A parent that waits is Waiting: no slot, no lock, no worker. The last child to answer gives its place to the parent.
Locks: the run of a child before that of its parent, and both before any turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from chordage.orchestrator.core import subagents
from chordage.orchestrator.core.agent import AgentSpec, SubAgent, ToolMode
from chordage.orchestrator.core.approvals import Action, Decision, Suspension, Why, settled_by
from chordage.orchestrator.core.client_tools import is_with_caller
from chordage.orchestrator.core.errors import InvalidMessage, UserError
from chordage.orchestrator.core.intents import CancelTurn, Dispatch, Hint
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest, check
from chordage.orchestrator.core.reasons import Ending, cancelled
from chordage.orchestrator.core.records import Call, Kin, NewCall, Run, Subject, kin_columns
from chordage.orchestrator.core.status import OPEN_CALL, CallStatus, RunStatus
from chordage.orchestrator.run import waiting
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import approvals, calls, children, runs, threads, turns
from chordage.orchestrator.store.database import Tx

SOURCE = "child"
NO_LONGER_NEEDED = "the run that asked does not wait for it any more"
Refusal = tuple[str, str]
Answered = Mapping[str, tuple[Suspension, Decision]]


# A round opens.


def suspend_for_children(rt: Runtime, run: Run, agent: AgentSpec, new_calls: list[NewCall]) -> list[NewCall]:
    """The calls of a round that ask a sub-agent wait for it from the start. In sequence, only the one whose turn it
    is.
    """
    left = agent.limits.max_children - run.children
    judged: list[NewCall] = []
    for call in new_calls:
        behind_others = any(other.status in OPEN_CALL for other in judged)
        checked = _suspended(rt, run, agent, call, left, behind_others=behind_others)
        left -= checked.question is not None and checked.question.why is Why.CHILD
        judged.append(checked)
    return judged


def is_new_ask(agent: AgentSpec, call: NewCall) -> bool:
    return call.status is CallStatus.NEW and subagents.of_tool(agent, call.tool) is not None


def _suspended(rt: Runtime, run: Run, agent: AgentSpec, call: NewCall, left: int, *, behind_others: bool) -> NewCall:
    sub = subagents.of_tool(agent, call.tool)
    if sub is None or call.status is not CallStatus.NEW:
        return call
    if (refusal := _refusal(rt, run, agent, sub, call.arguments[subagents.ARGUMENT], left)) is not None:
        code, content = refusal
        return replace(call, status=CallStatus.FAILED, code=code, content=content)
    if behind_others and agent.tool_mode is ToolMode.SEQUENTIAL:
        return call
    return replace(call, status=CallStatus.SUSPENDED, question=subagents.question(sub), suspension_id=rt.new_id())


def _refusal(rt: Runtime, run: Run, agent: AgentSpec, sub: SubAgent, text: str, left: int) -> Refusal | None:
    """Why no child can be started for this call, in words for the model."""
    kin = subagents.kin_of_child(run, agent, sub, "")
    if kin.depth > kin.max_depth:
        return subagents.too_deep(kin.depth, kin.max_depth)
    if left <= 0:
        return subagents.too_many(agent.limits.max_children)
    message = Message(origin=Origin.INVOKE, channel=None, sender=Sender.SELF, thread_id=None, text=text)
    try:
        rt.agents.get(sub.agent)
        check(TurnRequest(message=message, group=run.group), rt.bounds, rt.now())
    except InvalidMessage as error:
        return "invalid_arguments", str(error)
    except UserError as error:
        return "agent_unavailable", f"The sub-agent {sub.agent} cannot be asked: {error}"
    return None


def start_children(unit: Unit, run: Run, agent: AgentSpec, child_calls: Sequence[NewCall | Call]) -> None:
    """Admit a turn for each of these calls; the calls and their questions have been written."""
    if not child_calls:
        return
    children.count_started(unit.tx, run.id, len(child_calls))
    parent = turns.load(unit.tx, run.turn_id)
    assert parent is not None
    for call in child_calls:
        _admit(unit, run, agent, call, parent.tenant)


def start_new_children(unit: Unit, run: Run, agent: AgentSpec, new_calls: Sequence[NewCall]) -> None:
    """The children of a round that opens."""
    of_children = [call for call in new_calls if call.question is not None and call.question.why is Why.CHILD]
    start_children(unit, run, agent, of_children)


def _admit(unit: Unit, run: Run, agent: AgentSpec, call: NewCall | Call, tenant: str) -> None:
    """A turn of its own on a thread of its own, in the group of its parent and for the tenant of the whole tree."""
    sub = subagents.of_tool(agent, call.tool)
    assert sub is not None
    now, turn_id, thread_id = unit.now, unit.rt.new_id(), f"{subagents.THREAD_PREFIX}{call.id}"
    arrival = threads.arrive(unit.tx, thread_id, sub.agent, now)
    fields = {
        "id": turn_id, "thread_id": thread_id, "arrival": arrival, "agent": sub.agent, "grp": run.group.value,
        "rank": run.group.rank, "tenant": tenant, "origin": Origin.INVOKE.value, "channel": None,
        "sender": Sender.SELF.value, "text": call.arguments[subagents.ARGUMENT], "meta": {},
        "strategy": _strategy(unit.rt, sub.agent), "source": SOURCE, "dedupe_key": None, "reply_target": None,
        "not_before": None, "due_at": now, "deadline": None, "queued_at": now, "nudge_at": now,
    }  # fmt: skip
    turns.admit(unit.tx, {**fields, **kin_columns(subagents.kin_of_child(run, agent, sub, call.id))})
    unit.follow(Dispatch(group=run.group, hint=Hint(turn_id, thread_id), of=Subject(thread_id, sub.agent)))


def _strategy(rt: Runtime, name: str) -> str:
    """It could be loaded a moment ago. If it cannot now, the child reports that when it starts; the reply is kept."""
    try:
        return rt.agents.get(name).strategy
    except UserError:
        return AgentSpec(name="", model="").strategy


# Decided calls continue.


def in_sequence(agent: AgentSpec, due: Sequence[Call], answered: Answered) -> list[Call]:
    """Which of the calls that may continue do so now."""
    if agent.tool_mode is not ToolMode.SEQUENTIAL:
        return list(due)
    carried_out = {call.id for call in due if call.id not in answered or settled_by(*answered[call.id]) is None}
    is_elsewhere = {call.id for call in due if is_with_caller(call) or subagents.of_tool(agent, call.tool)}
    starts = carried_out & is_elsewhere
    return subagents.in_turn(due, starts, carried_out)


def start_among(unit: Unit, run: Run, agent: AgentSpec, sent: Sequence[Call], *, step: int) -> list[Call]:
    """Start the children that these calls ask for; returns the other calls, which are to be carried out."""
    asking = {call.id for call in sent if subagents.of_tool(agent, call.tool) is not None}
    started: list[Call] = []
    for call_id in sorted(asking):
        call = calls.load(unit.tx, call_id)  # with the arguments that a decision may have changed
        assert call is not None
        left = agent.limits.max_children - run.children - len(started)
        started += [call] if _suspends(unit, run, agent, call, left, step) else []
    start_children(unit, run, agent, started)
    return [call for call in sent if call.id not in asking]


def _suspends(unit: Unit, run: Run, agent: AgentSpec, call: Call, left: int, step: int) -> bool:
    sub = subagents.of_tool(agent, call.tool)
    assert sub is not None
    refusal = _refusal(unit.rt, run, agent, sub, call.arguments[subagents.ARGUMENT], left)
    if refusal is None:
        return waiting.suspend_idle_call(unit, call, run.agent, subagents.question(sub))
    code, content = refusal
    calls.answer(unit.tx, call, status=CallStatus.FAILED, code=code, content=content, step=step, now=unit.now)
    return False


def are_unanswered(tx: Tx, run: Run) -> bool:
    """Whether a child has not answered yet: then the model is not asked, whatever else of the round is settled."""
    return bool(run.children) and children.are_open(tx, run.id)


def are_at_work(tx: Tx, run: Run) -> bool:
    """Whether it waits for children alone, and no person is asked in its tree."""
    return are_unanswered(tx, run) and not children.is_person_asked(tx, run.kin.root_run if run.kin else run.id)


# A run ends.


def close_waiting_calls(unit: Unit, run: Run, *, code: str) -> None:
    """The run ends before the answers of its children were used. What they did may have taken effect."""
    open_calls = children.waiting_calls(unit.tx, run.id)
    calls.cancel(unit.tx, open_calls, code=code, content=subagents.CUT_OFF, now=unit.now)


def after_end(unit: Unit, run: Run, ending: Ending, text: str | None) -> None:
    """Answer the run that asked this one, and give up the runs that this one asked."""
    if run.kin is not None:
        _answer(unit, run.kin, ending, text, run_id=run.id)
    if run.children:
        give_up(unit, run_id=run.id)


def after_drop(unit: Unit, kin: Kin, detail: str | None) -> None:
    """As `after_end`, of a child that never started."""
    _answer(unit, kin, cancelled(detail), None, run_id=None)


def _answer(unit: Unit, kin: Kin, ending: Ending, text: str | None, *, run_id: str | None) -> None:
    """Stored only where the parent still waits for it."""
    tx = unit.tx
    parent = runs.lock(tx, kin.parent_run)
    if parent is not None and run_id is not None:
        _charge(tx, parent, run_id)
    if parent is None or parent.status is RunStatus.DONE:
        return
    question = children.open_suspension(tx, kin.parent_call)
    if question is None or not children.mark_answered(tx, question):
        return
    answer = Decision(
        id=unit.rt.new_id(), suspension_id=question, call_id=kin.parent_call, run_id=parent.id, action=Action.RESUME,
        payload=subagents.payload_of(ending, text), edited_args=None, reason=None, key=None,
    )  # fmt: skip
    approvals.store_decision(tx, answer, source=SOURCE, decided_by=SOURCE, now=unit.now)
    if parent.status is RunStatus.WAITING and not children.are_open(tx, parent.id):
        waiting.resume_run(unit, parent)


def _charge(tx: Tx, above: Run | None, run_id: str) -> None:
    """A run that is done was charged to the run above it when it ended, without this child: so that is charged too."""
    while above is not None:
        children.charge(tx, above.id, run_id)
        is_charged = above.status is RunStatus.DONE and above.kin is not None
        above = runs.lock(tx, above.kin.parent_run) if is_charged and above.kin else None


def give_up(unit: Unit, *, run_id: str | None = None, call_id: str | None = None) -> None:
    """The children of this run, or of this call, are no longer needed. They are marked here and cancelled each in
    a transaction of its own, and so down the tree.
    """
    for turn_id, of in children.give_up(unit.tx, run_id=run_id, call_id=call_id):
        unit.follow(CancelTurn(turn_id=turn_id, reason=NO_LONGER_NEEDED, of=of))
