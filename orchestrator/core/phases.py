"""The eight phases in which plugins are heard, and what each of them shows: to be read, never to be changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import Attempt, Fault, Reply, Said, Usage
from chordage.orchestrator.core.reasons import Ending


class Hook(StrEnum):
    """The value is the name of the plugin's method."""

    RUN_START = "run_start"
    STEP_START = "step_start"
    BEFORE_INFERENCE = "before_inference"
    AFTER_INFERENCE = "after_inference"
    STEP_END = "step_end"
    BEFORE_TOOL_EXECUTE = "before_tool_execute"
    AFTER_TOOL_EXECUTE = "after_tool_execute"
    RUN_END = "run_end"


class Scope(StrEnum):
    """How long something a plugin has noted is kept."""

    THREAD = "thread"
    RUN = "run"
    CALL = "call"


Values = Mapping[str, Any]
State = Mapping[Scope, Values]

NO_USAGE = Usage()
_NOTHING: Values = MappingProxyType({})
NO_STATE: State = MappingProxyType(dict.fromkeys(Scope, _NOTHING))


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """What every phase shows. `usage` is that of the run up to now, a reply that is shown included."""

    run_id: str
    thread_id: str
    agent: str
    group: Group
    step: int = 0
    rounds: int = 0  # rounds opened before this moment
    usage: Usage = NO_USAGE
    elapsed: float = 0.0  # seconds since the run started
    said: tuple[Said, ...] = ()  # the thread as the model sees it, without a reply that is shown apart
    said_before: int = 0  # how many of these are older than the run
    state: State = field(default_factory=lambda: NO_STATE)

    @property
    def said_in_run(self) -> tuple[Said, ...]:
        return self.said[self.said_before :]

    def noted(self, scope: Scope, key: str, default: Any = None) -> Any:
        """What plugins have noted under that key, as it was when the phase began."""
        return self.state.get(scope, _NOTHING).get(key, default)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelError:
    """What is shown of a model call that failed for good."""

    fault: Fault
    message: str
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True, slots=True)
class Resumed:
    """A call goes on because somebody has decided; the payload is the answer, None where there was no more to say."""

    payload: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownCall:
    """A tool call. The arguments are what it would run with: edited ones, where the decision has edited them."""

    id: str
    ask_id: str
    tool: str
    arguments: dict[str, Any]
    effect: Effect = Effect.UNSAFE
    resumed: Resumed | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownOutcome:
    content: str
    code: str | None = None  # why it failed; None: it did not
    seconds: float | None = None  # None: it never ran


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStart(Moment):
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class StepStart(Moment):
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class BeforeInference(Moment):
    model: str
    tools: tuple[str, ...] = ()  # the names that would be offered
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class AfterInference(Moment):
    """Exactly one of the two is there."""

    reply: Reply | None = None
    error: ModelError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepEnd(Moment):
    """Exactly one of the two is there."""

    reply: Reply | None = None
    error: ModelError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BeforeToolExecute(Moment):
    call: ShownCall


@dataclass(frozen=True, kw_only=True, slots=True)
class AfterToolExecute(Moment):
    call: ShownCall
    outcome: ShownOutcome


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnd(Moment):
    ending: Ending
