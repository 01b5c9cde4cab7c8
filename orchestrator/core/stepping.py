"""A run that its consumer drives: how it stands, what may be done with it there, and what was laid down for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core.model import Said

PENDING = 2**62  # in place of the id of an entry that is not recorded yet: it comes after all that are


class Control(StrEnum):
    """Who moves a run on: the engine, or a consumer, one iteration at a time."""

    AUTO = "auto"
    STEP = "step"


class Drive(StrEnum):
    """What happens when a stepped run comes to be held."""

    STEP = "step"  # it waits for its consumer
    ONCE = "once"  # somebody has said `next` already
    AUTO = "auto"  # somebody has said `run`: it goes on by itself to its end


class CapPolicy(StrEnum):
    """What becomes of the calls of the last reply that max_iterations allows."""

    RUN_TOOLS = "run_tools"
    SKIP_TOOLS = "skip_tools"


class OnHeld(StrEnum):
    """What happens when nobody moved a held run on in time."""

    PARK = "park"
    RESUME = "resume"
    CANCEL = "cancel"


class Standing(StrEnum):
    """Where a stepped turn stands, as its consumer sees it."""

    QUEUED = "queued"
    READY = "ready"  # started, and nothing was asked yet
    REQUESTING = "requesting"
    HELD = "held"  # a reply, a plan or what came of a planned round lies with the consumer
    TOOLING = "tooling"
    WAITING = "waiting"  # for a decision about a call
    PARKED = "parked"  # the consumer broke off
    FAILED = "failed"  # the model could not be asked; it can be tried again
    DONE = "done"


class Verb(StrEnum):
    """What a consumer may do. The values are a wire format."""

    NEXT = "next"
    MESSAGES = "messages"
    STEER = "steer"
    PARAMS = "params"
    OPTIONS = "options"
    COMPACT = "compact"
    PLAN = "plan"
    TOOL_RESPONSE = "tool_response"
    RETRY = "retry"
    TOOL_RESULTS = "tool_results"
    HOLD = "hold"
    DECIDE = "decide"
    PARK = "park"
    RUN = "run"
    CANCEL = "cancel"


_AT_REST = frozenset({Standing.READY, Standing.HELD, Standing.PARKED, Standing.FAILED})
_OPEN = frozenset(Standing) - {Standing.DONE}
_WITH_REPLY = frozenset({Standing.HELD, Standing.PARKED})

ALLOWED: Mapping[Verb, frozenset[Standing]] = {
    Verb.NEXT: _AT_REST | {Standing.QUEUED},
    Verb.MESSAGES: _AT_REST | {Standing.QUEUED},
    Verb.STEER: _OPEN,
    Verb.PARAMS: _AT_REST | {Standing.QUEUED},
    Verb.OPTIONS: _OPEN,
    Verb.COMPACT: _OPEN,
    Verb.PLAN: _AT_REST,
    Verb.TOOL_RESPONSE: _WITH_REPLY | {Standing.TOOLING},
    Verb.RETRY: _WITH_REPLY,
    Verb.TOOL_RESULTS: _WITH_REPLY | {Standing.TOOLING},  # a call that waits is answered: decide, or the inbox
    Verb.HOLD: _WITH_REPLY,
    Verb.DECIDE: _OPEN - {Standing.QUEUED},
    Verb.PARK: frozenset({Standing.READY, Standing.HELD, Standing.FAILED}),
    Verb.RUN: _OPEN,
    Verb.CANCEL: _OPEN,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTerms:
    """What is laid down with the turn. `max_iterations` None: no limit."""

    max_iterations: int | None = None
    cap_policy: CapPolicy = CapPolicy.SKIP_TOOLS
    hold_seconds: float | None = None  # None: it is held until somebody comes
    on_held: OnHeld = OnHeld.PARK
    params: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stepped:
    """The row of a stepped turn. `rev` grows with every change of it."""

    turn_id: str
    rev: int
    drive: Drive
    going: bool  # it is on its way to a request; else it is held at the next crossing
    mutated: bool  # the consumer has touched the history while a reply was held
    parked: bool
    reply_step: int | None  # of the reply that is held
    iteration: int  # requests that brought a reply
    max_iterations: int | None
    cap_policy: CapPolicy
    hold_seconds: float | None
    on_held: OnHeld
    held_until: datetime | None
    params: dict[str, Any]
    options: dict[str, Any]
    given: list[dict[str, Any]]  # messages that wait to become history
    replaces: bool  # ... in place of all that was said before
    steers: list[str]  # what is said behind the results
    verdicts: dict[str, Any]  # about calls that have not been opened yet, by the model's id
    withheld: list[str]  # tools that plugins kept from the model when it replied
    sent_hash: str | None
    error: dict[str, Any] | None
    compacts: int | None  # the request for a summary that is its consumer's, as the thread counts them
    plan: dict[str, Any] | None  # a decision of its consumer's, in place of the planner's


def digest(said: Sequence[Said], params: Mapping[str, Any]) -> str:
    """Of what the model is asked. Two requests with the same digest differ in nothing that the consumer can change."""
    import hashlib  # loads a library of its own: `import chordage` alone must not pay for it

    told = [[type(one).__name__, asdict(one)] for one in said]
    written = json.dumps([told, dict(params)], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()
