"""Many verdicts, one outcome. Who was asked first never matters.

Where two of the same weight cannot both hold, the choice hangs on the plugins alone: of gate verdicts and endings the
one of the plugin whose id comes first in the alphabet; of overrides and amended results the one of the plugin that is
last in the declared order (`before`, `after`, then the order in the agent's file). `order` is that: `Crew.ids`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from chordage.orchestrator.core.json_values import canonical
from chordage.orchestrator.core.phases import Hook
from chordage.orchestrator.core.reasons import Ending
from chordage.orchestrator.core.state_updates import SetState
from chordage.orchestrator.core.verdict_places import check_places
from chordage.orchestrator.core.verdicts import (
    AddContextMessage,
    AddMessage,
    AmendArguments,
    AmendResult,
    Block,
    Exclude,
    Given,
    IncludeOnly,
    OverrideModel,
    OverrideParams,
    SupplyResult,
    SuspendCall,
    Terminate,
    Verdict,
)

V = TypeVar("V", bound=Verdict)


class GateCode(StrEnum):
    """Why a call failed at the gate."""

    BLOCKED = "blocked"
    AMENDS_CONFLICT = "amends_conflict"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """What becomes of one call. `verdict` None: it may run. `amended` holds also for a call that is suspended."""

    verdict: Block | SuspendCall | SupplyResult | None = None
    plugin: str | None = None  # whose verdict it is; None also where several together are at fault
    code: GateCode | None = None  # of a Block
    amended: dict[str, Any] = field(default_factory=dict)

    def arguments(self, asked: dict[str, Any]) -> dict[str, Any]:
        return asked | self.amended


@dataclass(frozen=True, kw_only=True, slots=True)
class Inference:
    """What becomes of one model call. With an ending there is none."""

    ending: Ending | None = None
    only: frozenset[str] | None = None  # None: no plugin has made a list
    excluded: frozenset[str] = frozenset()
    model: str | None = None  # None: as the agent has it
    params: dict[str, Any] = field(default_factory=dict)  # over those of the agent
    messages: tuple[Given, ...] = ()  # context messages with their plugins, before `context_messages.due`

    def offers(self, tool: str) -> bool:
        return tool not in self.excluded and (self.only is None or tool in self.only)


@dataclass(frozen=True, kw_only=True, slots=True)
class Aftermath:
    """What becomes of one result."""

    content: str | None = None  # None: as the tool gave it
    messages: tuple[str, ...] = ()


def gate(given: Iterable[Given]) -> Gate:
    """Block over SuspendCall over SupplyResult over running. A later plugin cannot soften what another has said."""
    given = list(given)
    check_places(Hook.BEFORE_TOOL_EXECUTE, given)
    amended, conflict = _amended(_of(AmendArguments, given))
    if blocks := _of(Block, given):
        return Gate(verdict=blocks[0][1], plugin=blocks[0][0], code=GateCode.BLOCKED)
    if conflict:
        return Gate(verdict=Block(conflict), code=GateCode.AMENDS_CONFLICT)
    if asks := _of(SuspendCall, given):
        return Gate(verdict=asks[0][1], plugin=asks[0][0], amended=amended)
    if results := _of(SupplyResult, given):
        return Gate(verdict=results[0][1], plugin=results[0][0], amended=amended)
    return Gate(amended=amended)


def inference(given: Iterable[Given], order: Sequence[str]) -> Inference:
    given = list(given)
    check_places(Hook.BEFORE_INFERENCE, given)
    lists = [verdict.tools for _, verdict in _of(IncludeOnly, given)]
    models = _ordered(_of(OverrideModel, given), order)
    return Inference(
        ending=_ending(given),
        only=frozenset.intersection(*lists) if lists else None,
        excluded=frozenset().union(*(verdict.tools for _, verdict in _of(Exclude, given))),
        model=models[-1].model if models else None,
        params={
            key: value
            for verdict in _ordered(_of(OverrideParams, given), order)
            for key, value in verdict.params.items()
        },
        messages=tuple(_of(AddContextMessage, given)),
    )


def after_inference(given: Iterable[Given]) -> Ending | None:
    """Where it is stopped, the tools of the round run first; any other ending comes at once."""
    given = list(given)
    check_places(Hook.AFTER_INFERENCE, given)
    return _ending(given)


def aftermath(given: Iterable[Given], order: Sequence[str]) -> Aftermath:
    given = list(given)
    check_places(Hook.AFTER_TOOL_EXECUTE, given)
    contents = _ordered(_of(AmendResult, given), order)
    messages = _ordered(_of(AddMessage, given), order)
    return Aftermath(
        content=contents[-1].content if contents else None, messages=tuple(message.text for message in messages)
    )


def updates(given: Iterable[Given], order: Sequence[str]) -> tuple[SetState, ...]:
    """What is to be noted, in the declared order of the plugins, for `plugin_state.noted`."""
    return tuple(_ordered(_of(SetState, given), order))


def _amended(amends: Sequence[tuple[str, AmendArguments]]) -> tuple[dict[str, Any], str | None]:
    """The amendments together, and why they cannot be had together."""
    amended: dict[str, Any] = {}
    by: dict[str, str] = {}
    for plugin, verdict in amends:
        for key in sorted(verdict.arguments):
            value = verdict.arguments[key]
            if key in by and canonical(amended[key]) != canonical(value):
                return {}, f"plugins {by[key]} and {plugin} set the argument {key!r} to different values"
            amended[key] = value
            by.setdefault(key, plugin)
    return amended, None


def _ending(given: Iterable[Given]) -> Ending | None:
    found = _of(Terminate, given)
    return found[0][1].ending if found else None


def _of(kind: type[V], given: Iterable[Given]) -> list[tuple[str, V]]:
    """Those of one kind, by plugin id and then by what they say, so that the order in which they came is forgotten."""
    found = [(plugin, verdict) for plugin, verdict in given if isinstance(verdict, kind)]
    return sorted(found, key=lambda one: (one[0], _written(one[1])))


def _ordered(found: Sequence[tuple[str, V]], order: Sequence[str]) -> list[V]:
    place = {plugin: number for number, plugin in enumerate(order)}
    return [verdict for _, verdict in sorted(found, key=lambda one: place.get(one[0], -1))]


def _written(verdict: Verdict) -> str:
    return canonical({key: sorted(v) if isinstance(v, frozenset) else v for key, v in asdict(verdict).items()})
