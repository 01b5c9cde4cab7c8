"""What happens to a run, as the facts and the notes of it: for tests of those who read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from chordage.orchestrator.core.run_events import RunEvent
from chordage.orchestrator.faces.fold import TurnFold
from chordage.orchestrator.faces.moments import ReasoningGrown, Replied, TextDropped, TextGrown, TurnMoment

START = datetime(2026, 1, 1, tzinfo=UTC)
TURN, RUN, THREAD = "turn-1", "run-1", "api:t"
USAGE = {"input_tokens": 3, "output_tokens": 2, "cached_tokens": 0, "cache_write_tokens": 0}


@dataclass(slots=True)
class RunStory:
    """Each method adds what a run may do next. `events`: in the order in which they happened."""

    events: list[RunEvent] = field(default_factory=list)
    step: int = 0
    rows: int = 0
    asked: list[str] = field(default_factory=list)

    @property
    def facts(self) -> list[RunEvent]:
        return [event for event in self.events if event.is_fact]

    def fact(self, kind: str, *, number: int = 0, turn_id: str = TURN, **data: Any) -> RunEvent:
        self.rows += number == 0
        event = RunEvent(
            id=f"{self.rows}-{number}", kind=kind, thread_id=THREAD, turn_id=turn_id, run_id=RUN, agent="clerk",
            step=self.step, at=START + timedelta(seconds=self.rows), data=data,
        )  # fmt: skip
        self.events.append(event)
        return event

    def note(self, kind: str, **data: Any) -> None:
        self.events.append(
            RunEvent(id=None, kind=kind, thread_id=THREAD, turn_id=TURN, run_id=RUN, step=data.get("step"), data=data)
        )

    def start(self) -> None:
        self.fact("turn.queued")
        self.fact("run.started", text="hello", turn=TURN)

    def stream(self, attempts: Iterable[tuple[str, ...]]) -> None:
        """Each attempt at the next reply as its pieces; the last is the one that is recorded."""
        for attempt, pieces in enumerate(attempts):
            if attempt:
                self.note("live.reset", step=self.step + 1, attempt=attempt)
            offset = 0
            for piece in pieces:
                self.note("live.delta", step=self.step + 1, attempt=attempt, offset=offset, text=piece)
                offset += len(piece)

    def think(self, text: str, pieces: Iterable[str] = (), *, attempt: int = 0) -> None:
        """Notes of the reasoning of an attempt: each piece, then all of it."""
        offset = 0
        for piece in pieces:
            self.note("live.reasoning", step=self.step + 1, attempt=attempt, offset=offset, text=piece)
            offset += len(piece)
        if text:
            self.note("live.delta", step=self.step + 1, attempt=attempt, offset=0, text="", reasoning=text)

    def reply(self, text: str, calls: int = 0, **data: Any) -> list[str]:
        self.step += 1
        ids = [f"call-{self.step}-{place}" for place in range(calls)]
        asked = [{"id": call, "tool": "search", "arguments": {"q": call}} for call in ids]
        self.fact("model.replied", text=text, calls=asked, model="m", stop="end", usage=USAGE, seconds=0.5, **data)
        return ids

    def run_calls(self, ids: list[str]) -> None:
        for call in ids:
            self.note("tool.started", call=call, tool="search", worker="w")
        for call in ids:
            self.note("tool.progress", call=call, text="half")
            self.note("tool.settled", call=call, **settled(call))
        self.step += 1

    def record_round(self, ids: list[str]) -> None:
        """With the next reply: the checkpoint of a round is recorded late."""
        self.fact("tools.settled", calls=[settled(call) for call in ids])

    def ask(self, call: str) -> None:
        self.asked.append(call)
        self.fact("call.suspended", **question(call))

    def decide(self, call: str) -> None:
        self.fact("call.decided", suspension=f"question-{call}", call=call, action="resume", reason=None)

    def finish(self, text: str) -> None:
        end = {"reason": "natural_end", "code": None, "detail": None, "text": text, "usage": USAGE}
        self.fact("run.finished", calls=[], **end)
        self.fact("turn.ended", number=1, disposition="answered", **end)


def settled(call: str) -> dict[str, Any]:
    return {"id": call, "tool": "search", "status": "succeeded", "code": None, "content": f"found {call}"}


def question(call: str) -> dict[str, Any]:
    return {
        "id": f"question-{call}", "call_id": call, "run_id": RUN, "tool": "search", "arguments": {"q": call},
        "why": "permission", "prompt": "May it?", "schema": None, "digest": "d", "created_at": START.isoformat(),
        "expires_at": None, "on_expiry": "deny",
    }  # fmt: skip


def plain_story(rounds: int = 1) -> RunStory:
    story = RunStory()
    story.start()
    for number in range(rounds):
        story.stream([("let me ", "look")])
        ids = story.reply("let me look", 2)
        story.run_calls(ids)
        story.stream([("I have ", f"part {number}")])
        story.record_round(ids)
    story.reply(f"I have part {rounds - 1}")
    story.finish(f"I have part {rounds - 1}")
    return story


def told(events: Iterable[RunEvent]) -> list[TurnMoment]:
    fold = TurnFold(TURN)
    return [moment for event in events for moment in fold.feed(event)]


def texts_of(moments: Iterable[TurnMoment]) -> Iterator[tuple[Replied, str]]:
    """Of each reply: its moment, and the text that had grown when it came."""
    grown: dict[int, str] = {}
    for moment in moments:
        match moment:
            case TextGrown(step=step, text=text):
                grown[step] = grown.get(step, "") + text
            case TextDropped(step=step):
                grown[step] = ""
            case Replied(step=step):
                yield moment, grown.get(step, "")
            case _:
                pass


def reasonings_of(moments: Iterable[TurnMoment]) -> Iterator[tuple[Replied, str]]:
    """The same of their reasoning, which may not grow once the text has begun."""
    grown, has_text = "", False
    for moment in moments:
        match moment:
            case ReasoningGrown(text=text):
                assert not has_text
                grown += text
            case TextGrown():
                has_text = True
            case TextDropped():
                grown, has_text = "", False
            case Replied():
                yield moment, grown
                grown, has_text = "", False
            case _:
                pass
