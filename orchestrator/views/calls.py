"""One tool call as it is shown: what was asked, who carried it out, what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.records import Call
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.views.family import ChildView
from chordage.orchestrator.views.questions import QuestionView


@dataclass(frozen=True, kw_only=True, slots=True)
class CallView:
    id: str
    ask_id: str  # the model's own id of the call
    generation: int  # 1, and one more each time the model uses that id again in the run
    tool: str
    arguments: dict[str, Any]
    effect: Effect
    status: CallStatus
    code: str | None  # why it did not succeed
    content: str | None  # what the model reads of it
    progress: str | None  # the last thing it reported
    worker: str | None
    started_at: datetime | None
    ended_at: datetime | None
    seconds: float | None
    wake_ups: int  # 1, and one more for every time it had to be sent again
    replayed_at: int | None  # the step at which it last went on after a decision
    question: QuestionView | None  # the newest there was about it
    child: ChildView | None = None  # of a call that asked a sub-agent


def view_of(call: Call, question: QuestionView | None, child: ChildView | None) -> CallView:
    return CallView(
        id=call.id, ask_id=call.ask_id, generation=call.generation, tool=call.tool, arguments=call.arguments,
        effect=call.effect, status=call.status, code=call.code, content=call.content, progress=call.progress,
        worker=call.worker, started_at=call.started_at, ended_at=call.ended_at,
        seconds=seconds_between(call.started_at, call.ended_at), wake_ups=1 + call.resends,
        replayed_at=call.replayed_at, question=question, child=child,
    )  # fmt: skip


def by_round(
    calls: Iterable[Call], questions: Mapping[str, QuestionView], children: Mapping[str, ChildView]
) -> dict[tuple[str, int], tuple[CallView, ...]]:
    """By run and step, each in the order the model asked."""
    rounds: dict[tuple[str, int], list[CallView]] = {}
    for call in calls:
        question = questions.get(call.suspension_id) if call.suspension_id else None
        rounds.setdefault((call.run_id, call.step), []).append(view_of(call, question, children.get(call.id)))
    return {key: tuple(found) for key, found in rounds.items()}


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    return None if start is None or end is None else round((end - start).total_seconds(), 6)
