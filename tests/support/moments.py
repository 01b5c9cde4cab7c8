"""Moments of turns as tests write them, what they say of the transcript, and streams that replay them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.faces.moments import (
    CallAsked,
    CallProgressed,
    CallSettled,
    CallStarted,
    MessageTaken,
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

AT = datetime(2026, 1, 1, tzinfo=UTC)
USAGE = Usage(input_tokens=5, output_tokens=3)
ADD, ADD_MORE = (
    CallAsked(id="c1", tool="add", arguments={"a": 1, "b": 2}),
    CallAsked(id="c2", tool="add", arguments={"a": 30}),
)


@dataclass(kw_only=True)
class Script:
    """Of one turn: `moments` in the order they were said."""

    turn: str = "turn1"
    run: str = "run1"
    moments: list[TurnMoment] = field(default_factory=list)
    step: int = 0

    def say(self, *moments: TurnMoment) -> Script:
        self.moments += moments
        return self

    def queued(self, why: str | None = None) -> Script:
        return self.say(Queued(turn_id=self.turn, thread_id="api:t1", why=why))

    def started(self) -> Script:
        return self.say(
            Started(turn_id=self.turn, run_id=self.run, thread_id="api:t1", agent="ada", at=AT, text="Hello")
        )

    def replied(
        self,
        *texts: str,
        calls: Sequence[CallAsked] = (),
        dropped: str | None = None,
        stop: str = "end",
        is_plan: bool = False,
        reasoning: Sequence[str] = (),
        lost_reasoning: str = "",
    ) -> Script:
        """`dropped`: a worker died when it had sent that much, behind `lost_reasoning`."""
        self.step += 1 if self.step == 0 else 2
        self.say(StepStarted(step=self.step))
        attempt = 1
        if dropped is not None:
            if lost_reasoning:
                self.say(ReasoningGrown(step=self.step, attempt=1, text=lost_reasoning))
            if dropped or not lost_reasoning:
                self.say(TextGrown(step=self.step, attempt=1, text=dropped))
            self.say(TextDropped(step=self.step, attempt=1))
            attempt = 2
        self.say(*(ReasoningGrown(step=self.step, attempt=attempt, text=text) for text in reasoning))
        self.say(*(TextGrown(step=self.step, attempt=attempt, text=text) for text in texts))
        return self.say(
            Replied(
                step=self.step,
                text="".join(texts),
                reasoning="".join(reasoning),
                calls=tuple(calls),
                model="scripted:one",
                stop=stop,
                usage=USAGE,
                at=AT,
                is_plan=is_plan,
            )  # fmt: skip
        )

    def settled(self, call: CallAsked, content: str, code: str | None = None) -> Script:
        return self.say(CallSettled(id=call.id, tool=call.tool, ok=code is None, code=code, content=content))

    def round_settled(self) -> Script:
        return self.say(RoundSettled(step=self.step + 1))

    def asked(self, question: QuestionAsked) -> Script:
        return self.say(question)

    def answered(self, question: QuestionAsked, action: str = "resume", reason: str | None = None) -> Script:
        return self.say(QuestionAnswered(id=question.id, call_id=question.call_id, action=action, reason=reason))

    def waiting(self, *questions: QuestionAsked) -> Script:
        return self.say(Waiting(questions=questions, usage=USAGE))

    def ended(self, disposition: str = "answered", reason: str | None = "natural_end", **fields: Any) -> Script:
        rest = {"code": None, "detail": None, "text": None, "output": None, **fields}
        return self.say(TurnEnded(disposition=disposition, reason=reason, usage=USAGE, at=AT, **rest))


def question(call: CallAsked, **fields: Any) -> QuestionAsked:
    usual: dict[str, Any] = {
        "id": f"q-{call.id}", "call_id": call.id, "tool": call.tool, "arguments": call.arguments, "why": "permission",
        "prompt": "May it run?", "schema": None, "digest": "d1", "created_at": AT,
        "expires_at": AT + timedelta(days=9999), "on_expiry": "deny", "run_id": "run1",
    }  # fmt: skip
    return QuestionAsked(**{**usual, **fields})


def transcript(moments: Iterable[TurnMoment]) -> list[dict[str, Any]]:
    """What the conversation is after these moments, by the facts alone. Results stand behind the reply that asked."""
    said: list[dict[str, Any]] = []
    for moment in moments:
        match moment:
            case Replied(is_plan=False) if moment.text or moment.calls:
                calls = [{"id": call.id, "tool": call.tool, "arguments": call.arguments} for call in moment.calls]
                said.append({"role": "assistant", "text": moment.text, "calls": calls})
            case CallSettled():
                place = next(
                    place + 1
                    for place, one in enumerate(said)
                    if any(call["id"] == moment.id for call in one.get("calls", ()))
                )
                while place < len(said) and said[place]["role"] == "tool":
                    place += 1
                said.insert(place, {"role": "tool", "call": moment.id, "text": moment.content})
            case MessageTaken():
                said.append({"role": "user", "text": moment.text})
    return said


def reasoned(moments: Iterable[TurnMoment]) -> list[str]:
    """What is on record of what the model reasoned."""
    replies = [moment for moment in moments if isinstance(moment, Replied) and not moment.is_plan]
    return [reply.reasoning for reply in replies if reply.reasoning]


@dataclass(kw_only=True)
class ReplayedStreams:
    """Streams of turns with a script. Each reader gets the moments up to the last Waiting or TurnEnded; an earlier
    Waiting is left out, as in the real ones.
    """

    script: Callable[[str], Sequence[TurnMoment]]
    followed: list[str] = field(default_factory=list)
    then: Exception | None = None  # raised behind the last moment

    async def follow(self, turn_id: str, *, space: str | None, after: str | None = None) -> AsyncIterator[TurnMoment]:
        self.followed.append(turn_id)
        moments = list(self.script(turn_id))
        if not moments:
            raise NotFound(f"there is no turn {turn_id!r}")
        for place, moment in enumerate(moments):
            if not isinstance(moment, Waiting) or place == len(moments) - 1:
                yield moment
        if self.then is not None:
            raise self.then


def any_script(seed: int) -> Script:
    """A turn as it may go: any texts, deaths of workers, parallel calls, questions, steering and ends."""
    dice, minds = random.Random(seed), random.Random(f"minds {seed}")
    script, calls = Script(), 0
    if dice.random() < 0.5:
        script.queued(dice.choice([None, "behind another turn"]))
    if dice.random() < 0.1:
        return script.ended("expired", None)
    script.started()
    for _ in range(dice.randrange(4)):
        asked = [
            CallAsked(id=f"c{calls + number}", tool="add", arguments={"a": number})
            for number in range(1, dice.randrange(1, 4))
        ]
        calls += len(asked)
        dropped = dice.choice([None, None, "half a tex", ""])
        texts = [dice.choice(["", "one ", "two "]) for _ in range(dice.randrange(3))]
        script.replied(
            *texts, calls=asked, dropped=dropped, is_plan=not asked and dice.random() < 0.2,
            reasoning=minds.choice([(), ("So ",), ("Let me ", "think. ")]),
            lost_reasoning=minds.choice(["", "", "Half a thou"]),
        )  # fmt: skip
        _settle(script, asked, dice)
        if dice.random() < 0.2:
            script.say(
                MessageTaken(step=script.step + 2, turn_id=f"turn{script.step + 1}", sender="owner", text="Also this")
            )
    if dice.random() < 0.2:
        script.step += 2
        script.say(StepStarted(step=script.step))
        if minds.random() < 0.5:
            script.say(ReasoningGrown(step=script.step, attempt=1, text="cu"))
        if dice.random() < 0.5:
            script.say(TextGrown(step=script.step, attempt=1, text="cut"), TextDropped(step=script.step, attempt=1))
        elif isinstance(script.moments[-1], ReasoningGrown):
            script.say(TextDropped(step=script.step, attempt=1))
    else:
        script.replied("It is ", "done.", reasoning=minds.choice([(), ("It must ", "be so.")]))
    ends = [("answered", "natural_end"), ("answered", "stopped"), ("cancelled", "cancelled"), ("failed", "error")]
    return script.ended(*dice.choice(ends))


def _settle(script: Script, asked: Sequence[CallAsked], dice: random.Random) -> None:
    questions = [question(call) for call in asked if dice.random() < 0.3]
    in_question = {one.call_id for one in questions}
    for one in questions:
        script.asked(one)
    for call in dice.sample(asked, len(asked)):
        if call.id in in_question:
            continue
        script.say(CallStarted(id=call.id))
        if dice.random() < 0.3:
            script.say(CallProgressed(id=call.id, text="half of it"))
        script.settled(call, f"result of {call.id}", dice.choice([None, None, "tool_error"]))
    if questions:
        script.waiting(*questions)
    for one in questions:
        action = dice.choice(["resume", "cancel"])
        script.answered(one, action)
        call = next(call for call in asked if call.id == one.call_id)
        script.settled(call, f"late result of {call.id}", None if action == "resume" else "denied")
    if asked:
        script.round_settled()


def of_turn(moments: Iterable[TurnMoment], turn_id: str) -> list[TurnMoment]:
    """The same moments of another turn."""
    return [replace(moment, turn_id=turn_id) if isinstance(moment, Queued | Started) else moment for moment in moments]
