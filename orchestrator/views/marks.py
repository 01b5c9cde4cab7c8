"""The points of a message's path, and those of the run that handled it, in the order in which they were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import assert_never

from chordage.orchestrator.core.records import Checkpoint, Entry
from chordage.orchestrator.core.suspending import Action
from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.questions import QuestionView
from chordage.orchestrator.views.runs import RunView
from chordage.orchestrator.views.steps import (
    CompactionStep,
    InferenceStep,
    Interruption,
    PushedStep,
    ReplayStep,
    SaidStep,
    SteeredStep,
    Step,
    StepStatus,
    ToolRound,
    WaitStep,
)


class MarkKind(StrEnum):
    RECEIVED = "received"
    QUEUED = "queued"
    READY = "ready"
    STARTED = "started"
    MERGED = "merged"
    STEERED = "steered"  # this message, into a run
    TOOK_IN = "took_in"  # the run, another message
    PUSHED = "pushed"  # by the consumer of a stepped run: messages
    SAID = "said"  # ... words behind the results
    MODEL = "model"
    PLAN = "plan"
    CALL = "call"
    SUB_AGENT = "sub_agent"
    ROUND = "round"  # its results were recorded
    ASKED = "asked"  # a decision is needed
    DECIDED = "decided"
    WAITED = "waited"
    REPLAYED = "replayed"
    COMPACTED = "compacted"
    INTERRUPTED = "interrupted"
    CHECKPOINT = "checkpoint"  # any other row of the journal
    ENDED = "ended"  # with its disposition
    LEFT = "left"  # a reply is in the outbox
    SENT = "sent"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    at: datetime | None  # None: it has not come to pass yet
    kind: MarkKind
    told: str
    step: int | None = None  # of the run
    worker: str | None = None
    attempts: int | None = None  # of a model: models asked; of a call: wake-ups sent
    seconds: float | None = None
    journal: tuple[int, ...] = ()  # positions of the checkpoints that were committed with it
    id: str | None = None  # of what it is about: a turn, a run, a call, a suspension, a decision


# Of the same moment, in the order of their causes.
_ORDER = {kind: number for number, kind in enumerate(MarkKind)}
_BEHIND_THE_RUN = frozenset({MarkKind.MERGED, MarkKind.ENDED, MarkKind.LEFT, MarkKind.SENT})
_NEVER = datetime.min.replace(tzinfo=UTC)
_CHECKPOINTS: Mapping[type[Step], tuple[Checkpoint, ...]] = {
    InferenceStep: (
        Checkpoint.ASSISTANT_TURN, Checkpoint.PLAN, Checkpoint.REPLY_HELD, Checkpoint.OUTPUT_REFUSED,
    ),
    ToolRound: (Checkpoint.TOOL_RESULTS,),
    ReplayStep: (Checkpoint.TOOL_RESULTS,),
    WaitStep: (Checkpoint.RUN_WAITING,),
    SteeredStep: (Checkpoint.USER_MESSAGE,),
    PushedStep: (Checkpoint.CLIENT_MESSAGES,),
    SaidStep: (Checkpoint.CLIENT_STEERS,),
    CompactionStep: (Checkpoint.COMPACTED, Checkpoint.COMPACTION_FAILED),
    Interruption: (Checkpoint.RUN_INTERRUPTED, Checkpoint.ROLLED_BACK),
}  # fmt: skip
_OF_ENDS = (Checkpoint.USER_MESSAGE, Checkpoint.RUN_FINISHED)  # told with the start and the end of the turn


def in_order(marks: Iterable[Mark]) -> list[Mark]:
    """By time; what has not come to pass comes last."""
    return sorted(marks, key=lambda mark: (mark.at is None, mark.at or _NEVER, *_place(mark)))


def _place(mark: Mark) -> tuple[int, int, int]:
    """Among those of the same moment: the line, then the run step by step, then the end."""
    number = _ORDER[mark.kind]
    part = 2 if mark.kind in _BEHIND_THE_RUN else 0 if mark.step is None else 1
    return part, mark.step or 0, number


def of_run(
    run: RunView, entries: Sequence[Entry], questions: Mapping[str, Sequence[QuestionView]], *, first_step: int = 0
) -> list[Mark]:
    """From that step on. `questions` are those about its calls, by call."""
    marks = _Marks(run, entries, questions)
    found = [mark for step in run.steps if step.number >= first_step for mark in marks.of_step(step)]
    found += marks.of_other_checkpoints(first_step, told={number for mark in found for number in mark.journal})
    return in_order(found)


class _Marks:
    def __init__(self, run: RunView, entries: Sequence[Entry], questions: Mapping[str, Sequence[QuestionView]]) -> None:
        self._run = run
        self._entries = entries
        self._questions = questions

    def of_step(self, step: Step) -> Iterator[Mark]:
        journal = self._positions(step)
        match step:
            case InferenceStep():
                yield _inference(step, journal)
            case ToolRound():
                for call in step.calls:
                    yield from self._of_call(call, step.number)
                if step.at is not None:
                    told = f"results of {_counted(len(step.calls), 'call')} recorded"
                    yield Mark(at=step.at, kind=MarkKind.ROUND, told=told, step=step.number, journal=journal)
            case ReplayStep():
                told = f"{_named(step.calls)} went on after a decision"
                yield Mark(at=step.at, kind=MarkKind.REPLAYED, told=told, step=step.number, journal=journal)
            case WaitStep():
                yield _wait(step, journal)
            case SteeredStep():
                told = f"the run took in a message from {step.sender}: turn {step.turn_id}"
                yield Mark(
                    at=step.at, kind=MarkKind.TOOK_IN, told=told, step=step.number, journal=journal, id=step.turn_id
                )
            case PushedStep():
                manner = "in place of all before" if step.replaces else "behind what was said"
                told = f"its consumer gave {_counted(len(step.messages), 'message')}, {manner}"
                yield Mark(at=step.at, kind=MarkKind.PUSHED, told=told, step=step.number, journal=journal)
            case SaidStep():
                told = f"its consumer said {_counted(len(step.texts), 'thing')} more"
                yield Mark(at=step.at, kind=MarkKind.SAID, told=told, step=step.number, journal=journal)
            case CompactionStep():
                yield _compaction(step, journal)
            case Interruption():
                told = ": ".join(word for word in (step.reason.value, step.code, step.detail) if word)
                yield Mark(at=step.at, kind=MarkKind.INTERRUPTED, told=told, step=step.number, journal=journal)
            case _:
                assert_never(step)

    def _positions(self, step: Step) -> tuple[int, ...]:
        kinds = _CHECKPOINTS[type(step)]
        return tuple(entry.id for entry in self._entries if entry.step == step.number and entry.kind in kinds)

    def of_other_checkpoints(self, first_step: int, *, told: set[int]) -> Iterator[Mark]:
        for entry in self._entries:
            if entry.id not in told and entry.step >= first_step and entry.kind not in _OF_ENDS:
                yield Mark(
                    at=entry.at, kind=MarkKind.CHECKPOINT, told=entry.kind.value, step=entry.step, journal=(entry.id,)
                )

    def _of_call(self, call: CallView, step: int) -> Iterator[Mark]:
        if call.child is not None:
            child = call.child
            how = (child.disposition or child.status).value
            told = f"asked agent {child.agent}: {how}, turn {child.turn_id}"
            at = call.question.created_at if call.question else call.started_at
            yield Mark(at=at, kind=MarkKind.SUB_AGENT, told=told, step=step, seconds=call.seconds, id=child.turn_id)
            return
        yield _call(call, step)
        for question in self._questions.get(call.id, ()):
            yield from _question(question, call, step)


def _inference(step: InferenceStep, journal: tuple[int, ...]) -> Mark:
    kind = MarkKind.MODEL if step.plan is None else MarkKind.PLAN
    if step.model is None:
        told = "the model is being asked" if step.status is StepStatus.OPEN else "the run ended here, without a reply"
        at = None if step.status is StepStatus.OPEN else step.at
        return Mark(at=at, kind=kind, told=told, step=step.number, worker=step.worker)
    asks = f", asks for {_counted(step.asks, 'call')}" if step.asks else ""
    failed = [f"{one.model}: {one.fault.value}" for one in step.attempts if one.fault]
    tried = f" after {', '.join(failed)}" if failed else ""
    stop = f" stops with {step.stop.value}" if step.stop else ""
    refused = f"; refused as output: {step.refused}" if step.refused else ""
    return Mark(
        at=step.at, kind=kind, told=f"{step.model}{tried}{stop}{asks}{refused}", step=step.number, worker=step.worker,
        attempts=len(step.attempts) or None, seconds=step.seconds, journal=journal,
    )  # fmt: skip


def _call(call: CallView, step: int) -> Mark:
    code = f" ({call.code})" if call.code else ""
    return Mark(
        at=call.started_at or call.ended_at, kind=MarkKind.CALL, told=f"{call.tool} {call.status.value}{code}",
        step=step, worker=call.worker, attempts=call.wake_ups, seconds=call.seconds, id=call.id,
    )  # fmt: skip


def _question(question: QuestionView, call: CallView, step: int) -> Iterator[Mark]:
    asked = f"{call.tool} waits ({question.why.value}): {question.prompt}"
    yield Mark(at=question.created_at, kind=MarkKind.ASKED, told=asked, step=step, id=question.id)
    if (answer := question.answer) is None:
        return
    done = "denied" if answer.action is Action.CANCEL else "approved"
    why = f": {answer.reason}" if answer.reason else ""
    taken_up = "" if answer.applied_at else ", not taken up yet"
    told = f"{call.tool} {done} by {answer.source}{taken_up}{why}"
    yield Mark(at=answer.created_at, kind=MarkKind.DECIDED, told=told, step=step, id=answer.id)


def _wait(step: WaitStep, journal: tuple[int, ...]) -> Mark:
    took = (step.until - step.at).total_seconds() if step.until and step.at else None
    return Mark(
        at=step.at, kind=MarkKind.WAITED, told=f"for {_named(step.calls)}" if step.calls else "for its consumer",
        step=step.number, seconds=took, journal=journal,
    )  # fmt: skip


def _compaction(step: CompactionStep, journal: tuple[int, ...]) -> Mark:
    told = f"{step.entries} entries summed up" if step.why_not is None else f"no summary: {step.why_not}"
    return Mark(
        at=step.at, kind=MarkKind.COMPACTED, told=f"{step.model}, {told}", step=step.number, worker=step.worker,
        attempts=len(step.attempts) or None, seconds=step.seconds, journal=journal,
    )  # fmt: skip


def _named(calls: Sequence[CallView]) -> str:
    return f"{_counted(len(calls), 'call')} ({', '.join(call.tool for call in calls)})"


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
