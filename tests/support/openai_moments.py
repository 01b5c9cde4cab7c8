"""Moments of turns, as the fold would make them, and streams of them without a fleet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.faces.moments import (
    CallAsked,
    CallSettled,
    CallStarted,
    QuestionAnswered,
    QuestionAsked,
    Queued,
    ReasoningGrown,
    Replied,
    RoundSettled,
    Started,
    StepStarted,
    TextDropped,
    TextGrown,
    TurnEnded,
    TurnMoment,
    Waiting,
)

AT = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
USAGE = Usage(input_tokens=30, output_tokens=12, cached_tokens=4)
TURN, RUN, THREAD, AGENT = "turn-1", "run-1", "api:t1", "ada"


def queued(turn: str = TURN) -> Queued:
    return Queued(turn_id=turn, thread_id=THREAD, why="the budget of group chat is used up")


def started(turn: str = TURN) -> Started:
    return Started(turn_id=turn, run_id=RUN, thread_id=THREAD, agent=AGENT, at=AT, text="hello")


def grown(text: str, *, step: int = 1, attempt: int = 0) -> TextGrown:
    return TextGrown(step=step, attempt=attempt, text=text)


def thought(text: str, *, step: int = 1, attempt: int = 0) -> ReasoningGrown:
    return ReasoningGrown(step=step, attempt=attempt, text=text)


def dropped(*, step: int = 1, attempt: int = 0) -> TextDropped:
    return TextDropped(step=step, attempt=attempt)


def asked(call: str, tool: str = "add", **arguments: Any) -> CallAsked:
    return CallAsked(id=call, tool=tool, arguments=arguments)


def replied(text: str, *calls: CallAsked, step: int = 1, is_plan: bool = False, reasoning: str = "") -> Replied:
    return Replied(
        step=step, text=text, calls=calls, model="m", stop="tool_use" if calls else "end", usage=USAGE, at=AT,
        is_plan=is_plan, reasoning=reasoning,
    )  # fmt: skip


def settled(call: str, content: str = "3", *, tool: str = "add", code: str | None = None) -> CallSettled:
    return CallSettled(id=call, tool=tool, ok=code is None, code=code, content=content)


def question(call: str, *, id: str | None = None, tool: str = "pay", why: str = "permission") -> QuestionAsked:  # noqa: A002
    return QuestionAsked(
        id=id or f"q-{call}", call_id=call, tool=tool, arguments={"to": "bob"}, why=why, prompt=f"May {tool} run?",
        schema=None, digest="d", created_at=AT, expires_at=None, on_expiry="deny", run_id=RUN,
    )  # fmt: skip


def answered(call: str, *, id: str | None = None) -> QuestionAnswered:  # noqa: A002
    return QuestionAnswered(id=id or f"q-{call}", call_id=call, action="resume")


def waiting(*questions: QuestionAsked) -> Waiting:
    return Waiting(questions=questions, usage=USAGE)


def ended(text: str | None = None, *, disposition: str = "answered", code: str | None = None) -> TurnEnded:
    reason = {"answered": "natural_end" if code is None else "stopped", "failed": "error"}.get(disposition)
    return TurnEnded(
        disposition=disposition, reason=reason, code=code, detail=None, text=text, output=None, usage=USAGE, at=AT
    )


def plain(*pieces: str) -> list[TurnMoment]:
    """A turn that is answered at once."""
    text = "".join(pieces)
    return [queued(), started(), StepStarted(step=1), *map(grown, pieces), replied(text), ended(text)]


@dataclass(frozen=True)
class AnyTurn:
    """A turn as any watcher may see it, and the texts that its thread has afterwards."""

    moments: list[TurnMoment]
    texts: list[str]
    calls: list[str]  # that have a result
    reasonings: list[str] = field(default_factory=list)


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=12)


@st.composite
def any_turn(draw: st.DrawFn, *, lost: bool = True) -> AnyTurn:
    """Rounds with parallel calls, approvals among them, and workers that die in the middle of a text."""
    moments: list[TurnMoment] = [queued()] * draw(st.integers(0, 2)) + [started()]
    texts, done, reasonings = [], [], []
    rounds = draw(st.integers(0, 3))
    for number in range(rounds + 1):
        step = 2 * number + 1
        calls = [asked(f"c{number}-{place}") for place in range(draw(st.integers(1, 3)) if number < rounds else 0)]
        text = draw(st.just("") | TEXTS) if calls else draw(TEXTS)
        reasoning = draw(st.just("") | TEXTS)
        moments += draw(grown_texts(step, reasoning, text, lost=lost))
        moments.append(replied(text, *calls, step=step, reasoning=reasoning))
        texts += [text] if text else []
        reasonings += [reasoning] if reasoning else []
        open_calls = {call.id for call in calls if draw(st.integers(0, 5)) == 0}
        starts = [CallStarted(id=call.id) for call in calls if call.id not in open_calls and draw(st.booleans())]
        why = {call_id: draw(st.sampled_from(["permission", "tool"])) for call_id in sorted(open_calls)}
        ends = [question(c.id, why=why[c.id]) if c.id in why else settled(c.id) for c in calls]
        gates = [end for end in ends if isinstance(end, QuestionAsked) and end.why == "permission"]
        rest = draw(st.permutations([*starts, *(end for end in ends if end not in gates)]))
        moments += [*gates, *rest]
        done += [call.id for call in calls if call.id not in open_calls]
        if calls:
            moments.append(RoundSettled(step=step + 1))
        if open_calls:
            questions = [end for end in ends if isinstance(end, QuestionAsked)]
            if draw(st.booleans()):
                moments.append(waiting(*questions))
                return AnyTurn(moments=moments, texts=texts, calls=done, reasonings=reasonings)
            moments += [answered(each.call_id) for each in questions]
            moments += [settled(each.call_id) for each in draw(st.permutations(questions))]
            done += [each.call_id for each in questions]
    return AnyTurn(moments=[*moments, ended(texts[-1])], texts=texts, calls=done, reasonings=reasonings)


@st.composite
def grown_texts(draw: st.DrawFn, step: int, reasoning: str, text: str, *, lost: bool) -> list[TurnMoment]:
    moments: list[TurnMoment] = [StepStarted(step=step)]
    attempt = 0
    for other in draw(st.lists(TEXTS, max_size=2)) if lost else []:
        makers = draw(st.sampled_from([[thought], [grown], [thought, grown]]))
        moments += [make(other, step=step, attempt=attempt) for make in makers]
        moments.append(dropped(step=step, attempt=attempt))
        attempt += 1
    moments += [thought(piece, step=step, attempt=attempt) for piece in draw(cut_up(reasoning))]
    return moments + [grown(piece, step=step, attempt=attempt) for piece in draw(cut_up(text))]


@st.composite
def cut_up(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=3))) if text else []
    edges = [0, *(cut for cut in cuts if cut < len(text)), len(text)]
    return [text[start:end] for start, end in zip(edges, edges[1:], strict=False) if start < end]


@dataclass
class ReplayedStreams:
    """A stream of each turn from a list. The first few may be those that the turn had before a decision."""

    turns: dict[str, Sequence[TurnMoment]] = field(default_factory=dict)
    pause: float = 0.0
    followed: list[str] = field(default_factory=list)
    left_early: int = 0
    stale: dict[str, tuple[int, Sequence[TurnMoment]]] = field(default_factory=dict)

    async def follow(self, turn_id: str, *, space: str | None, after: str | None = None) -> AsyncIterator[TurnMoment]:
        assert after is None
        self.followed.append(turn_id)
        if turn_id not in self.turns:
            raise NotFound(f"there is no turn {turn_id!r} in {space}")
        times, moments = self.stale.get(turn_id, (0, ()))
        self.stale[turn_id] = (times - 1, moments)
        is_whole = False
        try:
            for moment in moments if times > 0 else self.turns[turn_id]:
                await asyncio.sleep(self.pause)
                yield moment
            is_whole = True
        finally:
            self.left_early += not is_whole


def wire(face: Any, moments: Iterable[TurnMoment]) -> list[dict[str, Any]]:
    """All events of a stream, from its beginning."""
    return [*face.begin(), *(event for moment in moments for event in face.feed(moment))]
