"""From journal rows and the rows of calls to the steps of a run, in the order in which they were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from chordage.orchestrator.core.compacting import Cause
from chordage.orchestrator.core.model import Fault, StopReason, Usage
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.records import Checkpoint, Entry, Phase, Run
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.core.summaries import tries
from chordage.orchestrator.views import pushed
from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.steps import (
    AttemptView,
    CompactionStep,
    InferenceStep,
    Interruption,
    PlanView,
    PushedStep,
    ReplayStep,
    SaidStep,
    SteeredStep,
    Step,
    StepStatus,
    ToolRound,
    WaitStep,
)

# Of steps with the same number.
_ORDER = (
    InferenceStep,
    ToolRound,
    ReplayStep,
    WaitStep,
    SteeredStep,
    PushedStep,
    SaidStep,
    CompactionStep,
    Interruption,
)


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What the truth has about one run."""

    run: Run
    entries: Sequence[Entry]
    rounds: Mapping[int, tuple[CallView, ...]]  # by step

    def steps(self) -> tuple[Step, ...]:
        steps: list[Step] = [replace(_told(entry), refused=self._refused.get(entry.step)) for entry in self._replies()]
        steps += pushed.steps(self.entries)
        steps += (_plan(entry) for entry in self._of(Checkpoint.PLAN))
        steps += (self._round(number, asked) for number, asked in self.rounds.items())
        steps += self._replays()
        steps += (self._wait(entry) for entry in self._of(Checkpoint.RUN_WAITING))
        steps += (_steered(entry) for entry in self._of(Checkpoint.USER_MESSAGE) if entry.step)
        steps += (_compaction(entry) for entry in tries(self.entries))
        steps += (_interruption(entry) for entry in self._of(Checkpoint.RUN_INTERRUPTED))
        steps += self._without_reply({step.number for step in steps if isinstance(step, InferenceStep)})
        return tuple(sorted(steps, key=lambda step: (step.number, _ORDER.index(type(step)))))

    def _replies(self) -> Iterator[Entry]:
        """Also those that their consumer holds, or did not want: they were asked for, and paid."""
        told = {entry.step for kind in (Checkpoint.ASSISTANT_TURN, Checkpoint.PLAN) for entry in self._of(kind)}
        yield from self._of(Checkpoint.ASSISTANT_TURN)
        yield from (entry for entry in self._of(Checkpoint.REPLY_HELD) if entry.step not in told)

    def _of(self, kind: Checkpoint) -> Iterator[Entry]:
        return (entry for entry in self.entries if entry.kind is kind)

    @cached_property
    def _calls(self) -> dict[str, CallView]:
        return {call.id: call for asked in self.rounds.values() for call in asked}

    @cached_property
    def _recorded(self) -> dict[int, Entry]:
        """The results of rounds and replays, by step."""
        return {entry.step: entry for entry in self._of(Checkpoint.TOOL_RESULTS)}

    @cached_property
    def _refused(self) -> dict[int, str]:
        """Why replies were not taken as output, by step."""
        return {entry.step: entry.body["why"] for entry in self._of(Checkpoint.OUTPUT_REFUSED)}

    @cached_property
    def _waits_at(self) -> set[int]:
        return {entry.step for entry in self._of(Checkpoint.RUN_WAITING)}

    def _round(self, number: int, asked: tuple[CallView, ...]) -> ToolRound:
        run = self.run
        is_open = run.status is not RunStatus.DONE and run.step == number and run.in_flight > 0
        entry = self._recorded.get(number)
        status = StepStatus.OPEN if is_open else StepStatus.DONE
        return ToolRound(number=number, status=status, calls=asked, at=entry.at if entry else None)

    def _replays(self) -> Iterator[ReplayStep]:
        for number, entry in self._recorded.items():
            if number not in self.rounds:
                calls = tuple(self._calls[call["id"]] for call in entry.body["calls"] if call["id"] in self._calls)
                yield ReplayStep(number=number, status=StepStatus.DONE, calls=calls, at=entry.at)
        run = self.run
        if run.phase is Phase.REPLAY and run.step not in {*self._recorded, *self.rounds, *self._waits_at}:
            calls = tuple(call for call in self._calls.values() if call.replayed_at == run.step)
            is_open = run.status is not RunStatus.DONE and run.in_flight > 0
            status = StepStatus.OPEN if is_open else StepStatus.DONE
            yield ReplayStep(number=run.step, status=status, calls=calls, at=None)

    def _wait(self, entry: Entry) -> WaitStep:
        is_open = self.run.status is RunStatus.WAITING and self.run.step == entry.step
        calls = tuple(self._calls[call_id] for call_id in entry.body["calls"] if call_id in self._calls)
        return WaitStep(
            number=entry.step, status=StepStatus.OPEN if is_open else StepStatus.DONE, calls=calls, at=entry.at,
            until=None if is_open else self._went_on(entry, calls),
        )  # fmt: skip

    def _went_on(self, wait: Entry, calls: Sequence[CallView]) -> datetime | None:
        """With the first answer to what it waited for. A call that was asked about again shows only its last answer:
        that one belongs to a later wait, and comes after what followed this one.
        """
        followed = min((entry.at for entry in self.entries if entry.id > wait.id and entry.at), default=None)
        answers = [call.question.answer.created_at for call in calls if call.question and call.question.answer]
        fitting = [at for at in answers if wait.at and wait.at <= at and (followed is None or at <= followed)]
        return min(fitting, default=None)

    def _without_reply(self, replied: set[int]) -> Iterator[InferenceStep]:
        """The inference the run stands at: it is being made, or it is what the run ended at."""
        run = self.run
        number = run.next_inference
        is_over = run.status is RunStatus.DONE
        if number is None or number in replied or run.status is RunStatus.WAITING or run.phase is Phase.HELD:
            return
        if not (self._had_begun() if is_over else self._is_next()):
            return
        attempts = self._in_vain(number)
        yield InferenceStep(
            number=number, status=StepStatus.BROKEN_OFF if is_over else StepStatus.OPEN, worker=run.claim_worker,
            model=None, stop=None, text=None, asks=0, attempts=attempts, usage=Usage(),
            seconds=_seconds(attempts) if attempts else None, at=run.ended_at,
        )  # fmt: skip

    def _in_vain(self, number: int) -> tuple[AttemptView, ...]:
        """What the end of the run has on record of the call that it ended at."""
        ends = (entry.body.get("attempts", ()) for entry in self._of(Checkpoint.RUN_FINISHED) if entry.step == number)
        return tuple(_attempt(attempt) for tried in ends for attempt in tried)

    def _had_begun(self) -> bool:
        """Behind a round only a failure tells that the model was asked again: a cancelled run may have ended in it."""
        run = self.run
        is_behind = run.phase is Phase.REPLAY or (run.phase is Phase.TOOL_ROUND and run.step in self.rounds)
        return not is_behind or run.reason is Reason.ERROR

    def _is_next(self) -> bool:
        """Behind a wait come the calls that were decided about, and only then the model."""
        return self.run.phase is not Phase.REPLAY or self.run.step not in self._waits_at


def _inference(entry: Entry) -> InferenceStep:
    body = entry.body
    attempts = tuple(_attempt(attempt) for attempt in body["attempts"])
    return InferenceStep(
        number=entry.step, status=StepStatus.DONE, worker=body.get("worker"), model=body["model"],
        stop=StopReason(body["stop"]), text=body["text"], asks=len(body["asks"]), attempts=attempts,
        usage=Usage(**body["usage"]), seconds=_seconds(attempts), at=entry.at,
    )  # fmt: skip


def _told(entry: Entry) -> InferenceStep:
    """A reply that is held may be a planner's."""
    found = _plan(entry) if "decision" in entry.body else _inference(entry)
    return replace(found, is_history=entry.kind is not Checkpoint.REPLY_HELD)


def _plan(entry: Entry) -> InferenceStep:
    body = entry.body
    ends, decision = body["ends"], body["decision"]
    plan = PlanView(decision=decision, ends=ends, refused=len(body["refused"]))
    return replace(_inference(entry), plan=plan, asks=0 if ends else len(decision["execution_commands"]))


def _compaction(entry: Entry) -> CompactionStep:
    body = entry.body
    attempts = tuple(_attempt(attempt) for attempt in body["attempts"])
    return CompactionStep(
        number=entry.step, cause=Cause(body["cause"]), worker=body.get("worker"), model=body["model"],
        summary=body.get("summary"), why_not=body.get("why"), upto=body.get("upto"), entries=body.get("entries", 0),
        attempts=attempts, usage=Usage(**body["usage"]), seconds=_seconds(attempts), at=entry.at,
    )  # fmt: skip


def _seconds(attempts: Sequence[AttemptView]) -> float:
    return round(sum(attempt.seconds for attempt in attempts), 3)


def _attempt(body: dict[str, str | float | None]) -> AttemptView:
    fault = body["fault"]
    return AttemptView(
        model=str(body["model"]),
        seconds=float(body["seconds"] or 0),
        fault=Fault(str(fault)) if fault else None,
        detail=str(body["detail"]),
    )


def _steered(entry: Entry) -> SteeredStep:
    body = entry.body
    return SteeredStep(number=entry.step, turn_id=body["turn"], sender=body["sender"], text=body["text"], at=entry.at)


def _interruption(entry: Entry) -> Interruption:
    told = entry.body
    return Interruption(
        number=entry.step, reason=Reason(told["reason"]), code=told["code"], detail=told["detail"], at=entry.at
    )
