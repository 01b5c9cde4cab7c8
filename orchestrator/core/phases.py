"""The eight phases in which plugins are called, and the data of each: for reading only."""

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
    """How long a noted value is kept."""

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
    """The data of every phase. `usage` is that of the run so far, with the reply of the phase."""

    run_id: str
    thread_id: str
    agent: str
    group: Group
    step: int = 0
    rounds: int = 0  # rounds opened so far
    usage: Usage = NO_USAGE
    elapsed: float = 0.0  # seconds since the run started
    said: tuple[Said, ...] = ()  # the thread as the model sees it, without the reply of the phase
    said_before: int = 0  # how many of these are older than the run
    state: State = field(default_factory=lambda: NO_STATE)

    @property
    def said_in_run(self) -> tuple[Said, ...]:
        return self.said[self.said_before :]

    def noted(self, scope: Scope, key: str, default: Any = None) -> Any:
        """The noted value of the key, as it was when the phase began."""
        return self.state.get(scope, _NOTHING).get(key, default)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelError:
    """A model call that failed for good."""

    fault: Fault
    message: str
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True, slots=True)
class Resumed:
    """A call continues after a decision. `payload`: what came with it, or None."""

    payload: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownCall:
    """A tool call, with the arguments that it would run with: the edited ones, where a decision edited them."""

    id: str
    ask_id: str
    tool: str
    arguments: dict[str, Any]
    effect: Effect = Effect.UNSAFE
    resumed: Resumed | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownOutcome:
    content: str
    code: str | None = None  # of a failure; None: it succeeded
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
    """Exactly one of the two is set."""

    reply: Reply | None = None
    error: ModelError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepEnd(Moment):
    """Exactly one of the two is set."""

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
