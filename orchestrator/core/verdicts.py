"""What a plugin may answer. A verdict that could not be carried out cannot be built."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core.demands import must, must_be_json, one_of
from chordage.orchestrator.core.reasons import Ending, Reason
from chordage.orchestrator.core.state_updates import SetState
from chordage.orchestrator.core.suspending import OnExpiry, Question, ResumeMode, Why


@dataclass(frozen=True, kw_only=True, slots=True)
class AddContextMessage:
    """A message for the model alone: it is in the prompt, not in the history.

    Shown again after more than `cooldown` steps, or at once when its text has changed; 0: in every prompt.
    """

    key: str
    text: str
    cooldown: int = 0

    def __post_init__(self) -> None:
        must(self.key.strip(), "a context message needs a key that is not blank")
        must(self.text.strip(), f"the context message {self.key!r} needs a text that is not blank")
        must(self.cooldown >= 0, f"a cooldown is a number of steps, 0 or more; got {self.cooldown!r}")


@dataclass(frozen=True, slots=True)
class IncludeOnly:
    """Offer no other tools. Of several plugins' lists, what is in all of them."""

    tools: frozenset[str]

    def __init__(self, tools: Collection[str]) -> None:
        object.__setattr__(self, "tools", _names(tools))


@dataclass(frozen=True, slots=True)
class Exclude:
    tools: frozenset[str]

    def __init__(self, tools: Collection[str]) -> None:
        object.__setattr__(self, "tools", _names(tools))


@dataclass(frozen=True, slots=True)
class OverrideModel:
    model: str

    def __post_init__(self) -> None:
        must(self.model.strip(), "the name of the model is blank")


@dataclass(frozen=True, slots=True)
class OverrideParams:
    """For this one model call; keys that are not named stay as they are."""

    params: dict[str, Any]

    def __post_init__(self) -> None:
        must_be_json(self.params, "params")


@dataclass(frozen=True, slots=True)
class Terminate:
    """End the run: `stopped(code, detail)`, or behaviour requested. After inference, the round's tools finish first
    when it is stopped.
    """

    ending: Ending

    def __post_init__(self) -> None:
        must(
            self.ending.reason in {Reason.STOPPED, Reason.BEHAVIOR_REQUESTED},
            f"a plugin ends a run as stopped or as behavior_requested, not as {self.ending.reason}",
        )


@dataclass(frozen=True, slots=True)
class Block:
    """The call does not run. The reason is its error result, for the model to read; the run goes on."""

    reason: str

    def __post_init__(self) -> None:
        must(self.reason.strip(), "a block needs a reason: it is all the model learns")


@dataclass(frozen=True, kw_only=True, slots=True)
class SuspendCall:
    """The call is put aside until somebody outside has decided; what a tool may ask for with `Suspend`."""

    prompt: str
    schema: dict[str, Any] | None = None
    resume_mode: ResumeMode = ResumeMode.REPLAY
    expires_in: float | None = None  # seconds
    on_expiry: OnExpiry = OnExpiry.DENY
    default: Any = None

    def __post_init__(self) -> None:
        must(self.prompt.strip(), "the prompt is blank; say what has to be decided")
        object.__setattr__(self, "resume_mode", one_of(ResumeMode, self.resume_mode, "resume_mode"))
        object.__setattr__(self, "on_expiry", one_of(OnExpiry, self.on_expiry, "on_expiry"))
        must(
            self.expires_in is None or (self.expires_in > 0 and math.isfinite(self.expires_in)),
            f"expires_in must be more than 0 seconds, or left out; got {self.expires_in!r}",
        )
        must_be_json(self.schema, "the schema")
        must_be_json(self.default, "the default")

    @property
    def question(self) -> Question:
        return Question(
            why=Why.GATE,
            prompt=self.prompt,
            schema=self.schema,
            resume_mode=self.resume_mode,
            expires_in=self.expires_in,
            on_expiry=self.on_expiry,
            default=self.default,
        )


@dataclass(frozen=True, slots=True)
class SupplyResult:
    """The call does not run: this is its result."""

    content: str


@dataclass(frozen=True, slots=True)
class AmendArguments:
    """Let the call run with these arguments instead; those that are not named stay as they are."""

    arguments: dict[str, Any]

    def __post_init__(self) -> None:
        must_be_json(self.arguments, "the arguments")


@dataclass(frozen=True, slots=True)
class AddMessage:
    """A message that stands in the history, behind the results of the round."""

    text: str

    def __post_init__(self) -> None:
        must(self.text.strip(), "the message is blank")


@dataclass(frozen=True, slots=True)
class AmendResult:
    content: str


Verdict = (
    AddContextMessage
    | IncludeOnly
    | Exclude
    | OverrideModel
    | OverrideParams
    | Terminate
    | Block
    | SuspendCall
    | SupplyResult
    | AmendArguments
    | AddMessage
    | AmendResult
    | SetState
)
Given = tuple[str, Verdict]  # the plugin that gave it, and what it gave


def _names(tools: Collection[str]) -> frozenset[str]:
    must(not isinstance(tools, str), f"the tools are a list of names; got the text {tools!r}")
    return frozenset(tools)
