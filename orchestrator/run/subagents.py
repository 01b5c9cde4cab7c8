"""Sub-agents: how a call becomes a child, and how the child's end becomes the answer to the call.

The call is put aside like any that waits for a decision, and in the same transaction the child's turn is admitted. The
transaction that ends the child decides about the call. There is no moment at which one is done and the other is not,
so nothing has to be delivered in between, and nothing can get lost.

Whoever waits is Waiting: no slot, no lock, no worker. The last child to answer hands its slot to its parent. Locks:
the run of a child before that of its parent, and both before any turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from chordage.orchestrator.core import kinship, subagents
from chordage.orchestrator.core.agent import AgentSpec, SubAgent, ToolMode
from chordage.orchestrator.core.approvals import Action, Decision, Suspension, Why, settled_by
from chordage.orchestrator.core.errors import InvalidMessage, UserError
from chordage.orchestrator.core.intents import CancelTurn, Dispatch, Hint, Intent
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest, check
from chordage.orchestrator.core.reasons import Ending, cancelled
from chordage.orchestrator.core.records import Call, NewCall, Run, Subject
from chordage.orchestrator.core.status import OPEN_CALL, CallStatus, RunStatus
from chordage.orchestrator.run import waiting
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import approvals, calls, children, runs, threads, turns
from chordage.orchestrator.store.database import Tx

SOURCE = "child"
Refusal = tuple[str, str]
Answered = Mapping[str, tuple[Suspension, Decision]]


# a round opens


def suspend_for_children(rt: Runtime, run: Run, agent: AgentSpec, asked: list[NewCall]) -> list[NewCall]:
    """The calls of a round that ask a sub-agent wait for it from the beginning. In sequence, only the one whose turn
    it is.
    """
    if not agent.agents:
        return asked
    left = agent.limits.max_children - run.children
    judged: list[NewCall] = []
    for call in asked:
        one = _judged(rt, run, agent, call, left, behind_others=any(other.status in OPEN_CALL for other in judged))
        left -= one.question is not None and one.question.why is Why.CHILD
        judged.append(one)
    return judged


def asks_one(agent: AgentSpec, call: NewCall) -> bool:
    """Whether a call of it that has not been looked at further asks a sub-agent."""
    return call.status is CallStatus.NEW and subagents.of_tool(agent, call.tool) is not None


def _judged(rt: Runtime, run: Run, agent: AgentSpec, call: NewCall, left: int, *, behind_others: bool) -> NewCall:
    sub = subagents.of_tool(agent, call.tool)
    if sub is None or call.status is not CallStatus.NEW:
        return call
    if (refusal := refusal_of(rt, run, agent, sub, call.arguments[subagents.ARGUMENT], left)) is not None:
        code, content = refusal
        return replace(call, status=CallStatus.FAILED, code=code, content=content)
    if behind_others and agent.tool_mode is ToolMode.SEQUENTIAL:
        return call
    return replace(call, status=CallStatus.SUSPENDED, question=subagents.question(sub), suspension_id=rt.new_id())


def refusal_of(rt: Runtime, run: Run, agent: AgentSpec, sub: SubAgent, text: str, left: int) -> Refusal | None:
    """Why no child can be started for this call, in words for the model."""
    kin = _kin(run, agent, sub, "")
    if kin.depth > kin.max_depth:
        return subagents.too_deep(kin.depth, kin.max_depth)
    if left <= 0:
        return subagents.too_many(agent.limits.max_children)
    try:
        rt.agents.get(sub.agent)
        check(_request(run, text), rt.bounds, rt.now())
    except InvalidMessage as error:
        return "invalid_arguments", str(error)
    except UserError as error:
        return "agent_unavailable", f"The sub-agent {sub.agent} cannot be asked: {error}"
    return None


def _kin(run: Run, agent: AgentSpec, sub: SubAgent, call_id: str) -> kinship.Kin:
    parent = {"id": run.id, "thread_id": run.thread_id, "agent": run.agent}
    return kinship.child_of(parent, run.kin, call_id=call_id, agent=sub.agent, max_depth=agent.limits.max_depth)


def _request(run: Run, text: str) -> TurnRequest:
    message = Message(origin=Origin.INVOKE, channel=None, sender=Sender.SELF, thread_id=None, text=text)
    return TurnRequest(message=message, group=run.group)


def begin_round(tx: Tx, rt: Runtime, run: Run, agent: AgentSpec, asked: Sequence[NewCall]) -> list[Intent]:
    """The children of a round that opens; its calls and their questions have been written."""
    of_children = [call for call in asked if call.question is not None and call.question.why is Why.CHILD]
    return _begin(tx, rt, run, agent, of_children)


def _begin(tx: Tx, rt: Runtime, run: Run, agent: AgentSpec, asked: Sequence[NewCall | Call]) -> list[Intent]:
    if not asked:
        return []
    children.count_started(tx, run.id, len(asked))
    own = turns.load(tx, run.turn_id)
    assert own is not None
    return [_admit(tx, rt, run, agent, call, own.tenant) for call in asked]


def _admit(tx: Tx, rt: Runtime, run: Run, agent: AgentSpec, call: NewCall | Call, tenant: str) -> Dispatch:
    """A turn of its own on a thread of its own, in the group of its parent and for whom the whole tree counts."""
    sub = subagents.of_tool(agent, call.tool)
    assert sub is not None
    now, turn_id, thread_id = rt.now(), rt.new_id(), f"{kinship.THREAD}{call.id}"
    arrival = threads.arrive(tx, thread_id, sub.agent, now)
    fields = {
        "id": turn_id, "thread_id": thread_id, "arrival": arrival, "agent": sub.agent, "grp": run.group.value,
        "rank": run.group.rank, "tenant": tenant, "origin": Origin.INVOKE.value, "channel": None,
        "sender": Sender.SELF.value, "text": call.arguments[subagents.ARGUMENT], "meta": {},
        "strategy": _strategy(rt, sub.agent), "source": SOURCE, "dedupe_key": None, "reply_target": None,
        "not_before": None, "due_at": now, "deadline": None, "queued_at": now, "nudge_at": now,
    }  # fmt: skip
    turns.admit(tx, {**fields, **kinship.columns(_kin(run, agent, sub, call.id))})
    return Dispatch(group=run.group, hint=Hint(turn_id, thread_id), of=Subject(thread_id, sub.agent))


def _strategy(rt: Runtime, name: str) -> str:
    """It could be loaded a moment ago. If it cannot now, the child says so when it starts; the reply is not lost."""
    try:
        return rt.agents.get(name).strategy
    except UserError:
        return AgentSpec(name="", model="").strategy


# the resume gate


def in_turn(agent: AgentSpec, due: Sequence[Call], answered: Answered) -> list[Call]:
    """What of the calls that may go on goes on now."""
    if agent.tool_mode is not ToolMode.SEQUENTIAL or not agent.agents:
        return list(due)
    carried_out = {call.id for call in due if call.id not in answered or settled_by(*answered[call.id]) is None}
    starts = {call.id for call in due if call.id in carried_out and subagents.of_tool(agent, call.tool)}
    return subagents.in_turn(due, starts, carried_out)


def begin_among(
    tx: Tx, rt: Runtime, run: Run, agent: AgentSpec, sent: Sequence[Call], *, step: int
) -> tuple[list[Call], list[Intent]]:
    """Of calls that go on now, those that ask a sub-agent wait for it; the others are left to be carried out."""
    asking_others = {call.id for call in sent if subagents.of_tool(agent, call.tool) is not None}
    if not asking_others:
        return list(sent), []
    begun: list[Call] = []
    for call_id in sorted(asking_others):
        call = calls.load(tx, call_id)  # with the arguments that a decision may have changed
        assert call is not None
        left = agent.limits.max_children - run.children - len(begun)
        begun += [call] if _waits(tx, rt, run, agent, call, left, step) else []
    return [call for call in sent if call.id not in asking_others], _begin(tx, rt, run, agent, begun)


def _waits(tx: Tx, rt: Runtime, run: Run, agent: AgentSpec, call: Call, left: int, step: int) -> bool:
    sub = subagents.of_tool(agent, call.tool)
    assert sub is not None
    refusal = refusal_of(rt, run, agent, sub, call.arguments[subagents.ARGUMENT], left)
    if refusal is None:
        return waiting.suspend_idle_call(tx, rt, call, run.agent, subagents.question(sub))
    code, content = refusal
    calls.answer(tx, call.id, status=CallStatus.FAILED, code=code, content=content, step=step, now=rt.now())
    return False


def hold_up(tx: Tx, run: Run) -> bool:
    """Whether a child has not answered yet: then the model is not asked, whatever else of the round is settled."""
    return bool(run.children) and children.are_open(tx, run.id)


def are_at_work(tx: Tx, run: Run) -> bool:
    """Whether it waits for children alone, and nobody in its tree for a person."""
    return hold_up(tx, run) and not children.is_person_asked(tx, run.kin.root_run if run.kin else run.id)


# an end


def close_waits(tx: Tx, rt: Runtime, run: Run, *, code: str) -> None:
    """The run ends before the answers of its children were used: nobody may believe that they did nothing."""
    calls.cancel(tx, children.waiting_calls(tx, run.id), code=code, content=subagents.CUT_OFF, now=rt.now())


def after_end(tx: Tx, rt: Runtime, run: Run, ending: Ending, text: str | None) -> list[Intent]:
    """What the end of a run means to whoever asked it, and to whom it has asked."""
    told = _answer(tx, rt, run.kin, ending, text, run_id=run.id) if run.kin is not None else []
    return [*told, *(given_up(tx, run_id=run.id) if run.children else [])]


def after_drop(tx: Tx, rt: Runtime, kin: kinship.Kin | None, detail: str | None) -> list[Intent]:
    """As after_end, of a child that never started."""
    return _answer(tx, rt, kin, cancelled(detail), None, run_id=None) if kin is not None else []


def _answer(
    tx: Tx, rt: Runtime, kin: kinship.Kin, ending: Ending, text: str | None, *, run_id: str | None
) -> list[Intent]:
    """Where nobody waits for it any more, the answer is not stored."""
    parent = runs.lock(tx, kin.parent_run)
    if parent is None or parent.status is RunStatus.DONE:
        return []
    if run_id is not None:
        children.charge(tx, parent.id, run_id)
    question = children.open_suspension(tx, kin.parent_call)
    if question is None or not children.mark_answered(tx, question):
        return []
    answer = Decision(
        id=rt.new_id(), suspension_id=question, call_id=kin.parent_call, run_id=parent.id, action=Action.RESUME,
        payload=subagents.payload_of(ending, text), edited_args=None, reason=None, key=None,
    )  # fmt: skip
    approvals.store_decision(tx, answer, source=SOURCE, now=rt.now())
    if parent.status is not RunStatus.WAITING or children.are_open(tx, parent.id):
        return []  # it comes to its gate by itself, or goes on with the last of them
    return [waiting.wake(tx, rt, parent)]


def given_up(tx: Tx, *, run_id: str | None = None, call_id: str | None = None) -> list[Intent]:
    """Nobody waits any more for the children of this run, or for that of this call. Marked here, cancelled each in a
    transaction of its own, and so down the tree.
    """
    why = "whoever had asked does not wait any more"
    return [
        CancelTurn(turn_id=turn_id, reason=why, of=of)
        for turn_id, of in children.give_up(tx, run_id=run_id, call_id=call_id)
    ]
