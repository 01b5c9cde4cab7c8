"""An agent as its room defines it, and what a tool declares of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Effect(StrEnum):
    """What may be done with a call whose worker died inside it."""

    PURE = "pure"  # run again
    IDEMPOTENT = "idempotent"  # run again, with the same idempotency key
    RECONCILABLE = "reconcilable"  # ask the tool's reconcile hook what became of it
    UNSAFE = "unsafe"  # never run again blindly

    @property
    def starts_on_record(self) -> bool:
        """Whether the start is committed before the tool runs: only then does a crash leave evidence of it."""
        return self in {Effect.RECONCILABLE, Effect.UNSAFE}


class MixedRound(StrEnum):
    """What a run does after a round of which some calls wait for a decision and others have their results."""

    CONTINUE = "continue"  # ask the model again; it sees a placeholder for the calls that wait
    WAIT = "wait"  # until every suspended call is settled


class ToolMode(StrEnum):
    PARALLEL = "parallel"
    PARALLEL_BATCH = "parallel_batch"  # decided calls go on only when all that wait are decided
    SEQUENTIAL = "sequential"  # one by one; a call that waits holds up those behind it


class WhenBusy(StrEnum):
    """What a message does that comes while its thread's run is at work."""

    ENQUEUE = "enqueue"  # it waits for its turn
    REJECT = "reject"  # it is refused
    INTERRUPT = "interrupt"  # it ends the run; what that has finished stays
    ROLLBACK = "rollback"  # ... and what that has said leaves the history
    STEER = "steer"  # the run takes it in at its next step


class OnUnknown(StrEnum):
    """What follows when nobody knows whether an unsafe call took effect."""

    ASK = "ask"
    FAIL = "fail"


class WhileWaiting(StrEnum):
    """What a message does that comes while its thread's run waits for a decision."""

    SUPERSEDE = "supersede"
    HOLD = "hold"


class OutOfScope(StrEnum):
    """What becomes of a plan that names a tool which was not offered."""

    FAIL_COMMAND = "fail_command"  # that command fails, the planner is told, the others run
    REFUSE_BATCH = "refuse_batch"  # nothing runs, and planning is over


class OnPlannerError(StrEnum):
    """What follows when every attempt to ask the planner failed."""

    RESPOND = "respond"  # the answer is given with what was found out so far
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSpec:
    """How an agent plans, where its strategy is one that does."""

    model: str | None = None  # None: the agent's
    max_rounds: int | None = 5
    timeout: float | None = None  # seconds of work after which no further round is planned
    out_of_scope: OutOfScope = OutOfScope.FAIL_COMMAND
    on_error: OnPlannerError = OnPlannerError.RESPOND
    planner: str | None = None  # a function that plans instead of a model, by entry point or import path
    executor: str | None = None  # the tool that carries out a whole round, by name
    history: bool = True  # whether the planner is told what was said on the thread before


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactionSpec:
    """When the older part of a conversation gives way to a summary, and who writes it."""

    threshold: int | None = None  # tokens of the last reply, with its prompt; None: only on request
    model: str | None = None  # None: the agent's
    instructions: str | None = None  # for whoever writes the summary; None: ours
    keep: int = 0  # how many of the newest replies stay word for word, whatever else may go


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginUse:
    """One plugin as an agent's file asks for it: an entry point's name or an import path, and its options."""

    use: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputUse:
    """What an agent's file demands of its final answer: a pydantic model by its import path, or a JSON Schema."""

    model: str = ""
    schema: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SubAgent:
    """Another agent of the room that this one may ask."""

    agent: str
    description: str = ""
    timeout: float | None = None  # seconds until its answer is waited for no longer


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSpec:
    """What the orchestrator needs to know of a tool without running it."""

    name: str
    description: str
    schema: dict[str, Any]
    effect: Effect = Effect.UNSAFE
    timeout: float = 60.0  # seconds, for one attempt
    retries: int = 0
    result_limit: int = 65_536  # characters the model sees; the whole result is kept apart


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    max_rounds: int | None = 25
    timeout: float | None = None  # seconds of work
    max_tool_calls: int | None = None  # that the model may ask for in one run
    max_depth: int = 5  # how deep sub-agents may ask each other, counted from the root
    max_children: int = 100  # how many sub-agents one run may ask


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSpec:
    name: str
    model: str
    fallbacks: tuple[str, ...] = ()
    instructions: str = ""
    tools: tuple[str, ...] = ()  # import paths, "package.module:name"
    strategy: str = "react"
    limits: Limits = Limits()
    params: dict[str, Any] = field(default_factory=dict)
    concurrency: int | None = None  # calls of one round that may run at once
    model_timeout: float = 120.0
    model_retries: int = 2
    stream: bool = True
    prompt_cache: bool = True  # the provider is told what of a prompt will come again, where its format has that
    tenant: str | None = None
    agents: tuple[SubAgent, ...] = ()
    tool_mode: ToolMode = ToolMode.PARALLEL
    mixed_round: MixedRound = MixedRound.CONTINUE
    on_unknown: OnUnknown = OnUnknown.ASK
    while_waiting: WhileWaiting | None = None  # None: supersede for chat, hold for the rest
    when_busy: WhenBusy = WhenBusy.ENQUEUE  # for messages that say nothing themselves
    plugins: tuple[PluginUse, ...] = ()
    output: OutputUse | None = None  # None: any text
    plan: PlanSpec = PlanSpec()
    compaction: CompactionSpec = CompactionSpec()
    selectable_models: tuple[str, ...] = ()  # further ones that a consumer may choose
    # All that the agent's file names. It stays as it is where a consumer or a plugin puts another model in place.
    named_models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.named_models:
            inner = tuple(name for name in (self.plan.model, self.compaction.model) if name)
            named = (self.model, *self.fallbacks, *inner, *self.selectable_models)
            object.__setattr__(self, "named_models", tuple(dict.fromkeys(named)))
