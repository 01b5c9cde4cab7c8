"""A run step by step: replies and waits from the journal, rounds from the rows of their calls.

The steps are the one list of what happened in a run. `chordage show` prints them; `trace` makes events of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core import message
from chordage.orchestrator.core.compaction import Cause
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import Fault, StopReason, Usage, usage_from
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.records import Checkpoint, Entry, Phase, Run
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.store import calls as call_rows
from chordage.orchestrator.store import fork_record, journal, runs
from chordage.orchestrator.store import usage as usage_rows
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views import calls
from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.conversion import view_of


class StepStatus(StrEnum):
    OPEN = "open"
    DONE = "done"
    BROKEN_OFF = "broken_off"  # the run ended here, without a reply


class StepKind(StrEnum):
    """Steps with the same number are listed in this order."""

    INFERENCE = "inference"
    TOOL_ROUND = "tool_round"
    REPLAY = "replay"
    WAITING = "waiting"
    STEERED = "steered"
    PUSHED = "pushed"
    STEERED_BY_CONSUMER = "steered_by_consumer"
    COMPACTION = "compaction"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptView:
    """One model of the agent's list that was asked."""

    model: str
    seconds: float
    fault: Fault | None
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanView:
    """The decision in a planner's reply."""

    decision: dict[str, Any]
    ends: str | None  # why planning ended with it; None: its commands were run
    refused: int  # how many of its commands may not run


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStep:
    number: int
    at: datetime | None  # when it was recorded
    status: StepStatus = StepStatus.DONE


@dataclass(frozen=True, kw_only=True, slots=True)
class InferenceStep(RunStep):
    worker: str | None = None  # that makes or made the model call, once it is recorded
    model: str | None = None
    stop: StopReason | None = None
    text: str | None = None
    reasoning: str | None = None  # what the model wrote for itself before its text
    asks: int = 0  # how many calls the reply asked for
    attempts: tuple[AttemptView, ...]
    usage: Usage
    seconds: float | None
    refused: str | None = None  # why it was refused as the output that is demanded
    plan: PlanView | None = None  # of a planner's reply
    is_history: bool = True  # False: the reply was held, and its consumer has not let it become history
    is_repeated: bool = False  # in a fork: the reply of the run that it is a fork of, for which no model was asked
    agent_digest: str | None = None  # of the version of the agent that asked the model; null: not known
    kind: StepKind = StepKind.INFERENCE


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolRound(RunStep):
    calls: tuple[CallView, ...]
    kind: StepKind = StepKind.TOOL_ROUND


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayStep(RunStep):
    """Calls of earlier rounds resumed after a decision; shown as they are now."""

    calls: tuple[CallView, ...]
    kind: StepKind = StepKind.REPLAY


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitStep(RunStep):
    """The run waited for decisions."""

    calls: tuple[CallView, ...]  # that waited, as they are now
    until: datetime | None  # the answer that ended the wait, if it is recorded
    kind: StepKind = StepKind.WAITING


@dataclass(frozen=True, kw_only=True, slots=True)
class SteeredStep(RunStep):
    """A message that came during the run was taken into it."""

    turn_id: str
    sender: str
    text: str
    kind: StepKind = StepKind.STEERED


@dataclass(frozen=True, kw_only=True, slots=True)
class PushedStep(RunStep):
    """Messages from the consumer of a stepped run. `replaces`: in place of the whole history."""

    messages: tuple[dict[str, Any], ...]
    replaces: bool
    kind: StepKind = StepKind.PUSHED


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerSteerStep(RunStep):
    """Text from the consumer of a stepped run, behind the results of a round."""

    texts: tuple[str, ...]
    kind: StepKind = StepKind.STEERED_BY_CONSUMER


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactionStep(RunStep):
    """A summary replaced the older part of the conversation, or no summary could be made."""

    cause: Cause
    worker: str | None = None
    model: str
    summary: str | None = None
    why_not: str | None  # why there is no summary; the history is unchanged
    upto: int | None = None  # the last journal row that the summary covers
    entries: int = 0  # messages, replies and notes that it replaced
    attempts: tuple[AttemptView, ...]
    usage: Usage
    seconds: float
    agent_digest: str | None = None  # as of an inference
    kind: StepKind = StepKind.COMPACTION


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruption(RunStep):
    """The run was ended from outside."""

    reason: Reason
    code: str | None
    detail: str | None
    kind: StepKind = StepKind.INTERRUPTED


Step = (
    InferenceStep
    | ToolRound
    | ReplayStep
    | WaitStep
    | SteeredStep
    | PushedStep
    | ConsumerSteerStep
    | CompactionStep
    | Interruption
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    run_id: str
    thread_id: str
    turn_id: str
    agent: str
    group: Group
    strategy: str
    status: RunStatus
    reason: Reason | None
    code: str | None
    detail: str | None
    rounds: int
    usage: Usage  # with that of its sub-agents that have ended
    own_usage: Usage  # without it: the sum of its steps
    parent_run: str | None  # of a sub-agent: the run, and below it the call, that asked it
    parent_call: str | None
    root_run: str | None
    path: str | None  # the agents from the root down to this one
    fork_of: str | None  # the run that it is a fork of
    agent_digest: str | None = None  # of the version of its agent with which it started; null: not known
    started_at: datetime
    ended_at: datetime | None
    extra: dict[str, Any]  # recorded with its end: the records of a run that planned
    steps: tuple[Step, ...]


def run(store: Store, run_id: str, *, space: str | None = None) -> RunView:
    """A caller with a `space` finds only the runs of its own threads, and of the sub-agents below them."""
    return run_with_journal(store, run_id, space=space)[0]


def run_with_journal(store: Store, run_id: str, *, space: str | None = None) -> tuple[RunView, list[Entry]]:
    """The run, and the journal rows its steps were made of."""
    with store.read() as tx:
        row = runs.load(tx, run_id)
        below = None if row is None else usage_from(usage_rows.of_children(tx, run_id), "children_")
        entries = journal.of_run(tx, run_id)
        rounds = {step: views for (_, step), views in calls.by_round(tx, call_rows.of_run(tx, run_id)).items()}
        fork = fork_record.load(tx, row.turn_id) if row is not None and row.fork_of is not None else None
    if row is None or below is None or not message.holds(space, row.home_thread):
        raise NotFound(f"there is no run {run_id!r}; `chordage turns` lists turns with their runs")
    extra = next((entry.body.get("extra") or {} for entry in entries if entry.kind is Checkpoint.RUN_FINISHED), {})
    kin = {name: getattr(row.kin, name, None) for name in ("parent_run", "parent_call", "root_run", "path")}
    order = list(StepKind)
    steps = sorted(
        _Steps(row, entries, rounds, fork.kept if fork else 0), key=lambda step: (step.number, order.index(step.kind))
    )
    own = row.usage - below
    return view_of(RunView, row, run_id=row.id, extra=extra, own_usage=own, steps=tuple(steps), **kin), entries


class _Steps:
    """The steps of one run; the caller puts them in order."""

    def __init__(
        self, run: Run, entries: Sequence[Entry], rounds: Mapping[int, tuple[CallView, ...]], repeated: int
    ) -> None:
        """`repeated`: how many of its first replies are those of the run that it is a fork of."""
        replies = sorted(entry.step for entry in entries if entry.kind is Checkpoint.ASSISTANT_TURN)
        self._repeated = frozenset(replies[:repeated])
        self._run = run
        self._entries = entries
        self._rounds = rounds  # by step
        self._calls = {call.id: call for views in rounds.values() for call in views}
        self._results = {entry.step: entry for entry in entries if entry.kind is Checkpoint.TOOL_RESULTS}
        self._waits_at = {entry.step for entry in entries if entry.kind is Checkpoint.RUN_WAITING}
        self._refused = {entry.step: entry.body["why"] for entry in entries if entry.kind is Checkpoint.OUTPUT_REFUSED}
        in_history = (Checkpoint.ASSISTANT_TURN, Checkpoint.PLAN)
        self._in_history = {entry.step for entry in entries if entry.kind in in_history}

    def __iter__(self) -> Iterator[Step]:
        replied = set(self._in_history)
        for entry in self._entries:
            if entry.kind is Checkpoint.REPLY_HELD:
                replied.add(entry.step)
            if (step := self._of_entry(entry)) is not None:
                yield step
        for number, views in self._rounds.items():
            results = self._results.get(number)
            is_open = self._is_at(number) and self._run.in_flight > 0
            yield ToolRound(
                number=number, status=_status(is_open=is_open), calls=views, at=results.at if results else None
            )
        yield from self._open_replay()
        yield from self._inference_without_reply(replied)

    def _of_entry(self, entry: Entry) -> Step | None:
        body = entry.body
        match entry.kind:
            case Checkpoint.ASSISTANT_TURN | Checkpoint.PLAN:
                return self._inference(entry)
            case Checkpoint.REPLY_HELD if entry.step not in self._in_history:  # asked for and paid, if not wanted
                return self._inference(entry)
            case Checkpoint.CLIENT_MESSAGES:
                messages, replaces = tuple(body["messages"]), bool(body["replaces"])
                return PushedStep(number=entry.step, messages=messages, replaces=replaces, at=entry.at)
            case Checkpoint.CLIENT_STEERS:
                return ConsumerSteerStep(number=entry.step, texts=tuple(body["texts"]), at=entry.at)
            case Checkpoint.TOOL_RESULTS if entry.step not in self._rounds:
                return ReplayStep(
                    number=entry.step, calls=self._known(call["id"] for call in body["calls"]), at=entry.at
                )
            case Checkpoint.RUN_WAITING:
                return self._wait(entry)
            case Checkpoint.USER_MESSAGE if entry.step:
                return SteeredStep(
                    number=entry.step, turn_id=body["turn"], sender=body["sender"], text=body["text"], at=entry.at
                )
            case Checkpoint.COMPACTED | Checkpoint.COMPACTION_FAILED:
                return _compaction(entry)
            case Checkpoint.RUN_INTERRUPTED:
                return view_of(Interruption, body, number=entry.step, at=entry.at)
        return None

    def _inference(self, entry: Entry) -> InferenceStep:
        body = entry.body
        plan, asks = None, len(body["asks"])
        if "decision" in body:
            plan = PlanView(decision=body["decision"], ends=body["ends"], refused=len(body["refused"]))
            asks = 0 if plan.ends else len(plan.decision["execution_commands"])
        attempts, is_repeated = _attempts(body), entry.step in self._repeated
        return view_of(
            InferenceStep, body, number=entry.step, at=entry.at, asks=asks, attempts=attempts,
            usage=Usage(**body["usage"]), seconds=_seconds(attempts), plan=plan,
            refused=None if entry.kind is Checkpoint.PLAN else self._refused.get(entry.step),
            is_history=entry.kind is not Checkpoint.REPLY_HELD, is_repeated=is_repeated,
            agent_digest=None if is_repeated else body.get("agent_digest"),
        )  # fmt: skip

    def _wait(self, entry: Entry) -> WaitStep:
        is_open = self._run.status is RunStatus.WAITING and self._run.step == entry.step
        waiting = self._known(entry.body["calls"])
        until = None if is_open else self._resumed_at(entry, waiting)
        return WaitStep(number=entry.step, status=_status(is_open=is_open), calls=waiting, at=entry.at, until=until)

    def _resumed_at(self, wait: Entry, waiting: Sequence[CallView]) -> datetime | None:
        """The first answer to this wait. A call that was asked about twice shows only its last answer: if that came
        after the journal rows that followed this wait, it belongs to a later one.
        """
        next_entry_at = min((entry.at for entry in self._entries if entry.id > wait.id and entry.at), default=None)
        answers = [call.question.answer.created_at for call in waiting if call.question and call.question.answer]
        fitting = [at for at in answers if wait.at and wait.at <= at and (next_entry_at is None or at <= next_entry_at)]
        return min(fitting, default=None)

    def _open_replay(self) -> Iterator[ReplayStep]:
        """The replay the run is at, whose results are not recorded yet."""
        run = self._run
        if run.phase is Phase.REPLAY and run.step not in {*self._results, *self._rounds, *self._waits_at}:
            replayed = tuple(call for call in self._calls.values() if call.replayed_at == run.step)
            status = _status(is_open=self._is_at(run.step) and run.in_flight > 0)
            yield ReplayStep(number=run.step, status=status, calls=replayed, at=None)

    def _inference_without_reply(self, replied: set[int]) -> Iterator[InferenceStep]:
        """The inference the run is at: the model is being called, or the run ended during the call."""
        run = self._run
        number = run.next_inference
        if number is None or number in replied or run.status is RunStatus.WAITING or run.phase is Phase.HELD:
            return
        is_over = run.status is RunStatus.DONE
        if is_over:
            # After a round, only a failure proves that the model was called: a cancelled run may have ended before it.
            is_after_round = run.phase is Phase.REPLAY or (run.phase is Phase.TOOL_ROUND and run.step in self._rounds)
            if is_after_round and run.reason is not Reason.ERROR:
                return
        elif run.phase is Phase.REPLAY and run.step in self._waits_at:  # the decided calls run before the model
            return
        ends = (entry for entry in self._entries if entry.kind is Checkpoint.RUN_FINISHED and entry.step == number)
        bodies = [entry.body for entry in ends]
        attempts = tuple(attempt for body in bodies for attempt in _attempts(body))
        yield InferenceStep(
            number=number, at=run.ended_at, status=StepStatus.BROKEN_OFF if is_over else StepStatus.OPEN,
            worker=run.claim_worker, attempts=attempts, usage=Usage(),
            seconds=_seconds(attempts) if attempts else None,
            agent_digest=next((body.get("agent_digest") for body in bodies), None),
        )  # fmt: skip

    def _is_at(self, number: int) -> bool:
        return self._run.status is not RunStatus.DONE and self._run.step == number

    def _known(self, call_ids: Iterator[str] | Sequence[str]) -> tuple[CallView, ...]:
        return tuple(self._calls[call_id] for call_id in call_ids if call_id in self._calls)


def _compaction(entry: Entry) -> CompactionStep:
    body = entry.body
    attempts = _attempts(body)
    return view_of(
        CompactionStep, body, number=entry.step, at=entry.at, why_not=body.get("why"), attempts=attempts,
        usage=Usage(**body["usage"]), seconds=_seconds(attempts),
    )  # fmt: skip


def _attempts(body: Mapping[str, Any]) -> tuple[AttemptView, ...]:
    return tuple(
        view_of(AttemptView, attempt, seconds=float(attempt["seconds"] or 0)) for attempt in body.get("attempts", ())
    )


def _seconds(attempts: Sequence[AttemptView]) -> float:
    return round(sum(attempt.seconds for attempt in attempts), 3)


def _status(*, is_open: bool) -> StepStatus:
    return StepStatus.OPEN if is_open else StepStatus.DONE
