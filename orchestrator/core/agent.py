"""An agent as its room defines it, and what a tool declares about itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Effect(StrEnum):
    """What may be done with a call whose worker died during it."""

    PURE = "pure"  # run again
    IDEMPOTENT = "idempotent"  # run again, with the same idempotency key
    RECONCILABLE = "reconcilable"  # ask the tool's reconcile hook for the outcome
    UNSAFE = "unsafe"  # never run again without a decision

    @property
    def starts_on_record(self) -> bool:
        """Whether the start is committed before the tool runs, so that a crash leaves a record of it."""
        return self in {Effect.RECONCILABLE, Effect.UNSAFE}


class MixedRound(StrEnum):
    """What a run does when some calls of a round have results and others wait for a decision."""

    CONTINUE = "continue"  # ask the model again, with a placeholder for each waiting call
    WAIT = "wait"  # ask it when every suspended call is settled


class ToolMode(StrEnum):
    PARALLEL = "parallel"
    PARALLEL_BATCH = "parallel_batch"  # decided calls continue only when all waiting calls are decided
    SEQUENTIAL = "sequential"  # one by one; a waiting call blocks those behind it


class Placement(StrEnum):
    """Where the calls of a round run: core/placement.py."""

    AUTO = "auto"  # by what is known of their tools
    HERE = "here"  # in the process that holds the run
    TOGETHER = "together"  # several in one message
    SPREAD = "spread"  # one message each


class WhenBusy(StrEnum):
    """What a message does to the working run of its thread."""

    ENQUEUE = "enqueue"  # it is queued behind the run
    REJECT = "reject"  # it is refused
    INTERRUPT = "interrupt"  # it ends the run, whose messages stay in the history
    ROLLBACK = "rollback"  # ... whose messages leave the history
    STEER = "steer"  # the run gets it at its next step


class OnUnknown(StrEnum):
    """What follows when it is unknown whether an unsafe call took effect."""

    ASK = "ask"
    FAIL = "fail"


class WhenChanged(StrEnum):
    """What open runs do when the definition of their agent changes."""

    FINISH = "finish"  # they end with the version with which they began
    FOLLOW = "follow"  # they continue with the newest


class WhileWaiting(StrEnum):
    """What a message does to a run of its thread that waits for a decision."""

    SUPERSEDE = "supersede"
    HOLD = "hold"


class OutOfScope(StrEnum):
    """What happens to a plan that names a tool which was not offered."""

    FAIL_COMMAND = "fail_command"  # that command fails and the planner sees it; the others run
    REFUSE_BATCH = "refuse_batch"  # nothing runs, and planning ends


class OnPlannerError(StrEnum):
    """What follows when every attempt at a planner call failed."""

    RESPOND = "respond"  # the answer is written from the results so far
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSpec:
    """How an agent plans, with a strategy that plans."""

    model: str | None = None  # None: the agent's
    max_rounds: int | None = 5
    timeout: float | None = None  # seconds of work, after which no further round is planned
    out_of_scope: OutOfScope = OutOfScope.FAIL_COMMAND
    on_error: OnPlannerError = OnPlannerError.RESPOND
    planner: str | None = None  # a function that plans instead of a model, by entry point or import path
    executor: str | None = None  # the tool that carries out a whole round, by name
    history: bool = True  # whether the planner sees the history of the thread


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactionSpec:
    """When a summary replaces the older part of a conversation, and which model writes it."""

    threshold: int | None = None  # tokens of the last reply, with its prompt; None: only on request
    model: str | None = None  # None: the agent's
    instructions: str | None = None  # for the writer of the summary; None: ours
    keep: int = 0  # how many of the newest replies always stay in full


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginUse:
    """A plugin of an agent's file: an entry point's name or an import path, and its options."""

    use: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputUse:
    """The required form of the final answer: a pydantic model by its import path, or a JSON Schema."""

    model: str = ""
    schema: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SubAgent:
    """Another agent of the room that this one may ask."""

    agent: str
    description: str = ""
    timeout: float | None = None  # seconds to wait for its answer


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSpec:
    """The description of a tool."""

    name: str
    description: str
    schema: dict[str, Any]
    effect: Effect = Effect.UNSAFE
    timeout: float = 60.0  # seconds, for one attempt
    retries: int = 0
    result_limit: int = 65_536  # characters that the model sees; the whole result is stored
    placement: Placement = Placement.AUTO  # what its author says; an agent's file may say otherwise
    is_remote: bool = False  # another service carries it out: it waits for a network


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    max_rounds: int | None = 25
    timeout: float | None = None  # seconds of work
    max_tool_calls: int | None = None  # of one run
    max_depth: int = 5  # levels of sub-agents below the root
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
    concurrency: int | None = None  # calls of one round that run at the same time
    model_timeout: float = 120.0
    model_retries: int = 2
    stream: bool = True
    prompt_cache: bool = True  # mark the stable part of a prompt, where the provider's format can
    tenant: str | None = None
    agents: tuple[SubAgent, ...] = ()
    tool_mode: ToolMode = ToolMode.PARALLEL
    placement: Placement = Placement.AUTO
    placements: dict[str, Placement] = field(default_factory=dict)  # of single tools, by name
    mixed_round: MixedRound = MixedRound.CONTINUE
    on_unknown: OnUnknown = OnUnknown.ASK
    while_waiting: WhileWaiting | None = None  # None: supersede for chat, hold for the rest
    when_busy: WhenBusy = WhenBusy.ENQUEUE  # for messages without a value of their own
    when_changed: WhenChanged = WhenChanged.FINISH
    plugins: tuple[PluginUse, ...] = ()
    output: OutputUse | None = None  # None: any text
    plan: PlanSpec = PlanSpec()
    compaction: CompactionSpec = CompactionSpec()
    selectable_models: tuple[str, ...] = ()  # more models that a consumer may choose
    named_models: tuple[str, ...] = ()  # all of the agent's file, also while another model is used
    digest: str = field(default="", compare=False)  # of its version: core/agent_versions.py; empty: not computed here
    pinned_tools: tuple[str, ...] | None = field(default=None, compare=False)  # of a stored version: its own, by name

    def __post_init__(self) -> None:
        if not self.named_models:
            inner = tuple(name for name in (self.plan.model, self.compaction.model) if name)
            named = (self.model, *self.fallbacks, *inner, *self.selectable_models)
            object.__setattr__(self, "named_models", tuple(dict.fromkeys(named)))
