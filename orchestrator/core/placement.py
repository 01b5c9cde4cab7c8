"""Where the calls of a round run, and why: in the process that holds the run, or in messages, and in how many.

A message costs more than a short tool takes. So a call stays here if its tool is known to be short and may run again,
and calls that leave share messages where that makes the round no longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from chordage.orchestrator.core.agent import AgentSpec, Effect, Placement, ToolSpec
from chordage.orchestrator.core.records import NewCall

MESSAGE = 0.003  # seconds that a message costs, from the process that sends it to the one that has read it
STAY = 0.05  # seconds that the calls of a round may hold up the process that holds the run
WEIGHT = 0.2  # of the newest duration in the mean
REPEATABLE = frozenset({Effect.PURE, Effect.IDEMPOTENT})


@dataclass(frozen=True, kw_only=True, slots=True)
class Duration:
    """How long the calls of a tool took, in seconds."""

    mean: float  # in which older calls count less and less
    last: float

    @property
    def is_short(self) -> bool:
        """A call that overstayed counts until the next one."""
        return self.mean < MESSAGE and self.last < STAY

    def differs_from(self, other: Duration | None) -> bool:
        """By so much that other processes should know."""
        if other is None or self.is_short is not other.is_short:
            return True
        return abs(self.mean - other.mean) > max(0.001, other.mean / 4)


def noted(known: Duration | None, seconds: float) -> Duration:
    """With one more call."""
    mean = seconds if known is None else known.mean + WEIGHT * (seconds - known.mean)
    return Duration(mean=mean, last=seconds)


class Bar(StrEnum):
    """What keeps a call from staying here, unless it is set."""

    REMOTE = "another service carries it out"
    PLUGIN = "a plugin reads its result"
    DEATH = "a worker died in this step"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedCall:
    """What is known of a call when its round is placed."""

    id: str
    effect: Effect
    wish: Placement = Placement.AUTO
    duration: Duration | None = None  # None: never measured
    bar: Bar | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundPlan:
    """`here`: the calls that stay. `batches`: those that leave, a message for each. `why`: a word on each call."""

    here: tuple[str, ...] = ()
    batches: tuple[tuple[str, ...], ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)


def place_round(
    agent: AgentSpec,
    calls: Sequence[NewCall],
    specs: Mapping[str, ToolSpec],
    durations: Mapping[str, Duration | None],
    bar: Bar | None = None,
) -> RoundPlan:
    """The calls of a reply. `specs` and `durations`: of the tools, by name. `bar`: for all of them."""
    return place([_known_of(agent, call, specs.get(call.tool), durations, bar) for call in calls], agent.concurrency)


def _known_of(
    agent: AgentSpec, call: NewCall, spec: ToolSpec | None, durations: Mapping[str, Duration | None], bar: Bar | None
) -> PlacedCall:
    is_remote = spec is not None and spec.is_remote
    return PlacedCall(
        id=call.id, effect=call.effect, wish=wish_for(agent, call.tool, spec), duration=durations.get(call.tool),
        bar=Bar.REMOTE if is_remote else bar,
    )  # fmt: skip


def wish_for(agent: AgentSpec, tool: str, spec: ToolSpec | None) -> Placement:
    """The agent's file about this tool, then the tool's own word, then the agent's file about all of its tools."""
    wishes = (agent.placements.get(tool, Placement.AUTO), Placement.AUTO if spec is None else spec.placement)
    return next((wish for wish in wishes if wish is not Placement.AUTO), agent.placement)


def place(calls: Sequence[PlacedCall], at_once: int | None = None) -> RoundPlan:
    """`at_once`: how many of the round may run at the same time. Those that stay run one by one, and count as one."""
    here: list[str] = []
    why: dict[str, str] = {}
    leaving: list[PlacedCall] = []
    room = STAY / 2  # not all of it: a mean is no promise
    for call in calls:
        stays, why[call.id] = _stays(call, room)
        if stays:
            here.append(call.id)
            room -= call.duration.mean if call.duration else 0.0
        else:
            leaving.append(call)
    if here and leaving and at_once == 1:
        leaving, here, why = list(calls), [], dict.fromkeys(why, "together: one at a time")
    width = None if at_once is None else max(1, at_once - bool(here))
    return RoundPlan(here=tuple(here), batches=_batches(leaving, width), why=why)


def _stays(call: PlacedCall, room: float) -> tuple[bool, str]:
    """Whether the call runs here, and why."""
    match call.wish:
        case Placement.HERE:
            return True, "here: as set"
        case Placement.TOGETHER | Placement.SPREAD as wish:
            return False, f"{wish.value}: as set"
        case Placement.AUTO:
            pass
    if call.effect not in REPEATABLE:
        return False, f"spread: {call.effect.value}"
    if call.duration is None:
        return False, "spread: not measured yet"
    took = f"{1000 * call.duration.mean:.1f} ms"
    if call.bar:
        return False, f"together: {call.bar}"
    if not call.duration.is_short:
        return False, f"together: takes {took}"
    if call.duration.mean > room:
        return False, "together: the round is full"
    return True, f"here: takes {took}"


def _batches(calls: Sequence[PlacedCall], width: int | None) -> tuple[tuple[str, ...], ...]:
    """Longest first, each where there is least to do: so the longest batch is as short as it can be. The calls of one
    run in the model's order.
    """
    most = len(calls) if width is None else min(width, len(calls))
    longest = max((_seconds(call) for call in calls), default=0.0)
    batches: list[_Batch] = []
    for call in sorted(calls, key=_seconds, reverse=True):
        shares = _shares(call)
        limit = max(longest, STAY) if call.wish is Placement.TOGETHER else longest + MESSAGE
        fitting = [batch for batch in batches if shares and batch.shares and batch.seconds + _seconds(call) <= limit]
        if fitting:
            batch = min(fitting, key=_load)
        elif len(batches) < most:
            batches.append(batch := _Batch(shares=shares))
        else:
            batch = min(batches, key=_load)
        batch.add(call)
    order = [call.id for call in calls]
    return tuple(
        sorted((tuple(sorted(batch.ids, key=order.index)) for batch in batches), key=lambda ids: order.index(ids[0]))
    )


def _seconds(call: PlacedCall) -> float:
    return call.duration.mean if call.duration else 0.0


def _shares(call: PlacedCall) -> bool:
    """Whether it may be behind another call in a message. What is not known may take any time."""
    if call.wish is Placement.AUTO:
        return call.effect in REPEATABLE and call.duration is not None
    return call.wish is Placement.TOGETHER


@dataclass(kw_only=True, slots=True)
class _Batch:
    shares: bool
    seconds: float = 0.0
    ids: list[str] = field(default_factory=list)

    def add(self, call: PlacedCall) -> None:
        self.ids.append(call.id)
        self.seconds += _seconds(call)


def _load(batch: _Batch) -> tuple[float, int]:
    return batch.seconds, len(batch.ids)
