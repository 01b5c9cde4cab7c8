"""What a scripted model says, as its file tells it.

A YAML script is a list of replies, or a mapping:

    replies:                    # one after the other, from the start again behind each user message
      - text: Let me look.
        tool_calls: [{name: search, arguments: {query: "{user}"}}]
      - text: "I found: {results}"
      - when: weather           # only if the last user message contains this; such replies form a sequence of their own
        text: Sunny.
        fail: {fault: rate_limit, times: 2, retry_after: 1}
    repeat: true                # begin again when the replies run out; or
    default: Nothing more.      # what to say then

`when` may also be a mapping of contains, regex, system (part of the instructions) and turn (which user message it is).
A Python script defines `reply(prompt, attempt)` that returns such a mapping, or only a text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core.model import Fault, StopReason, Usage


class How(StrEnum):
    """In which shape a fault appears on the wire. Only the scripted server looks at it."""

    STATUS = "status"
    SSE_ERROR = "sse_error"  # an error event in the middle of the stream
    SSE_GARBAGE = "sse_garbage"  # an event that is not JSON
    JSON = "json"  # half a JSON document
    HTML = "html"  # a page with status 200
    EMPTY = "empty"  # {}
    NO_CHOICES = "no_choices"
    CUT = "cut"  # the answer ends early, in good order
    RESET = "reset"  # the connection breaks
    STALL = "stall"  # silence after the first events
    HANG = "hang"  # silence before the headers


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a prompt asks for: `index` counts the assistant's words since the user's message, from 0."""

    user: str
    system: str
    turn: int
    index: int
    plan: int | None = None  # the number of the plan, from 0

    @property
    def number(self) -> int:
        return 1 + (self.index if self.plan is None else self.plan)


@dataclass(frozen=True, kw_only=True, slots=True)
class When:
    contains: str = ""
    regex: str = ""
    system: str = ""
    turn: int | None = None
    round: int | None = None  # which request since the user's message, from 1
    plan: bool | None = None  # whether it asks for a plan

    def fits(self, asked: Asked) -> bool:
        return (
            self.contains.lower() in asked.user.lower()
            and bool(re.search(self.regex, asked.user))
            and self.system in asked.system
            and self.turn in {None, asked.turn}
            and self.round in {None, asked.number}
            and self.plan in {None, asked.plan is not None}
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Fail:
    """`times` is how many attempts fail; None: all of them. `after` is how many pieces of a stream come before."""

    fault: Fault
    times: int | None = None
    retry_after: float | None = None
    how: How = How.STATUS
    after: int = 2

    def hits(self, attempt: int) -> bool:
        return self.times is None or attempt <= self.times


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptedCall:
    """`arguments` as a text are sent as they are, so that a script can have them broken."""

    name: str
    arguments: dict[str, Any] | str = field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptedReply:
    """`latency` is waited before the first word, `pace` between pieces of `chunk` characters."""

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    when: When | None = None
    stop: StopReason | None = None
    usage: Usage | None = None
    latency: float = 0.0
    pace: float = 0.0
    chunk: int = 12
    fail: Fail | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    replies: tuple[ScriptedReply, ...]
    repeat: bool = False
    default: ScriptedReply | None = None

    def choose(self, asked: Asked) -> ScriptedReply | None:
        """The reply in turn of those whose `when` fits, or of those without one where none fits. A reply that names its
        round is the only one for it; those that are for plans come in the order of the plans.
        """
        fitting = [(reply, reply.when) for reply in self.replies if reply.when and reply.when.fits(asked)]
        if named := [reply for reply, when in fitting if when.round is not None]:
            return named[0]
        if asked.plan is not None and (plans := [reply for reply, when in fitting if when.plan]):
            return self._at(plans, asked.plan)
        sequence = [reply for reply, _when in fitting] or [reply for reply in self.replies if reply.when is None]
        return self._at(sequence, asked.index)

    def _at(self, sequence: Sequence[ScriptedReply], index: int) -> ScriptedReply | None:
        if self.repeat and sequence:
            return sequence[index % len(sequence)]
        return sequence[index] if index < len(sequence) else self.default
