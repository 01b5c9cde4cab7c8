"""Exploring: the same scenario under many schedules, and the smallest schedule that breaks it.

First without a fault; then with each single thing that can go wrong (a kill at every commit, around every execution of
a tool and after every effect; every message lost, doubled and late); then with several at once, drawn by a seed.
After each run the scenario's own assertions have held, and so do the invariants below.
"""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core.agent import Effect
from chordage.testing.invariants import check_all, check_always
from chordage.testing.schedules import (
    PLAIN,
    FaultKind,
    FaultPlaces,
    FaultSchedule,
    random_schedules,
    shrink,
    single_faults,
)
from chordage.testing.world import RecordedEffect, World, WorldError

Scenario = Callable[[World], object]
WORDS = {
    FaultKind.DROP: "message {} is lost",
    FaultKind.DOUBLE: "message {} is delivered twice",
    FaultKind.DELAY: "message {} is late: the next one overtakes it",
    FaultKind.LOSE_REDIS: "at message {} Redis loses everything",
    FaultKind.KILL_BEFORE_COMMIT: "the process is killed before commit {}",
    FaultKind.KILL_AFTER_COMMIT: "the process is killed after commit {}",
    FaultKind.KILL_BEFORE_TOOL: "the process is killed before execution {} of a tool",
    FaultKind.KILL_AFTER_EFFECT: "the process is killed after effect {}, inside the tool",
    FaultKind.KILL_AFTER_TOOL: "the process is killed after execution {} of a tool, before its result is stored",
    FaultKind.STALL_IN_TOOL: "the process stops after execution {} of a tool, is taken for dead, and continues",
}


class DoubledEffect(AssertionError):
    """A call that was carried out again did again what it had done."""


class ImpureTool(AssertionError):
    """A tool that is declared pure has an effect."""


class ScheduleFailed(AssertionError):
    """The scenario does not hold under a schedule. Its text is the report."""

    def __init__(self, report: str, *, schedule: FaultSchedule, error: BaseException, steps: list[str]) -> None:
        super().__init__(report)
        self.schedule = schedule
        self.error = error
        self.steps = steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Exploration:
    """What was tried. Nothing failed."""

    runs: int
    single: int  # with one fault
    drawn: int  # with several
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.runs} runs in {self.seconds:.1f} s: without a fault, {self.single} with one, "
            f"{self.drawn} with several"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tried:
    schedule: FaultSchedule
    places: FaultPlaces
    steps: list[str]
    error: BaseException | None
    hint: str | None = None  # what the kit has seen besides


def explore(
    scenario: Scenario,
    *,
    schedules: int = 100,
    seed: int = 0,
    replay: str | None = None,
    name: str | None = None,
    again: str = "explore(..., replay={token!r})",
    **world: Any,
) -> Exploration:
    """Call the scenario with a new World for each schedule. `schedules`: how many with several faults. `replay`: only
    this one, as a report names it. `world`: arguments of each World. `again`: how to replay, for the report. Raises
    ScheduleFailed for the first schedule that fails, made as small as possible, and what the scenario raises without
    any fault.
    """
    began = time.monotonic()
    name = name or str(getattr(scenario, "__name__", "the scenario"))
    if replay is not None:
        tried = _try(scenario, FaultSchedule.read(replay), world)
        if tried.error is not None:
            raise _failed(name, tried, "it was replayed", again) from tried.error
        return Exploration(runs=1, single=0, drawn=0, seconds=time.monotonic() - began)
    plain = _plain(name, scenario, PLAIN, world)
    here = _plain(name, scenario, FaultSchedule(here=True), world)
    singles = [*single_faults(plain.places, here=False), *_only_here(plain, here)]
    counted = itertools.count(3)
    for number, schedule in zip(counted, singles, strict=False):
        _check(name, scenario, schedule, world, f"one fault at a time, run {number}", again)
    for number, schedule in zip(counted, random_schedules(plain.places, seed, schedules), strict=False):
        _check(name, scenario, schedule, world, f"several faults, seed {seed}, run {number}", again)
    return Exploration(
        runs=2 + len(singles) + schedules, single=len(singles), drawn=schedules, seconds=time.monotonic() - began
    )


def _only_here(plain: _Tried, here: _Tried) -> Iterator[FaultSchedule]:
    """Where all calls of a round run in one process, they are other places. Without a tool they are the same."""
    if plain.places.tools:
        yield from single_faults(here.places, here=True)


def _plain(name: str, scenario: Scenario, schedule: FaultSchedule, world: dict[str, Any]) -> _Tried:
    tried = _try(scenario, schedule, world)
    if tried.error is not None:
        where = " where its calls run in one process" if schedule.here else ""
        tried.error.add_note(f"{name} fails without any fault{where}. Its steps:\n" + "\n".join(tried.steps))
        raise tried.error
    if not tried.places.deliveries:
        raise WorldError(f"{name} carries nothing out, so nothing can go wrong: submit a message and call world.run()")
    return tried


def _check(
    name: str, scenario: Scenario, schedule: FaultSchedule, world: dict[str, Any], found: str, again: str
) -> None:
    tried = _try(scenario, schedule, world)
    if tried.error is None:
        return
    kind = type(tried.error)
    smallest = shrink(schedule, lambda candidate: type(_try(scenario, candidate, world).error) is kind)
    last = _try(scenario, smallest, world)
    if type(last.error) is not kind:
        raise _failed(name, tried, f"{found}; it does not fail each time", again) from tried.error
    raise _failed(name, last, found, again) from last.error


def _try(scenario: Scenario, schedule: FaultSchedule, world: dict[str, Any]) -> _Tried:
    with closing(World(schedule=schedule, **world)) as made:
        error: Exception | None = None
        hint: str | None = None
        try:
            scenario(made)
        except Exception as raised:
            error = raised
        try:
            check_effects(made)
            if error is None:
                check(made)
        except Exception as raised:
            hint = str(raised) if error is not None else None
            error = error or raised
        return _Tried(schedule=schedule, places=made.places, steps=made.steps, error=error, hint=hint)


# What must hold after every run


def check(world: World) -> None:
    """What the product promises."""
    store = world.engine.store
    check_always(store, {group.value: budget for group, budget in world.engine.budgets.items()})
    if not world.engine.unfinished():
        check_all(store)


def check_effects(world: World) -> None:
    """What tools declare of themselves. No effect of one execution of a call is one of an earlier execution too."""
    for effect in world.effects:
        if effect.tool is not None and world.declared(effect) is Effect.PURE:
            raise ImpureTool(f"{effect.tool} is declared pure, and it has an effect: {effect}")
    known: dict[tuple[str | None, str], RecordedEffect] = {}
    for effect in world.effects:
        if effect.call_id is None:
            continue
        before = known.setdefault((effect.call_id, str(effect)), effect)
        if before.execution != effect.execution:
            declared = world.declared(effect)
            word = "an" if declared in {Effect.IDEMPOTENT, Effect.UNSAFE} else "a"
            raise DoubledEffect(
                f"{effect.tool} took effect twice for one call: {effect}. It is declared {declared.value}, and {word} "
                f"{declared.value} call {_MAY[declared]}"
            )


_MAY = {
    Effect.PURE: "may run again at any time.",
    Effect.IDEMPOTENT: "may run again: give ctx.idempotency_key to what it changes, so that the second time changes "
    "nothing.",
    Effect.RECONCILABLE: "runs again when its reconcile hook says that it did not happen: the hook returned None.",
    Effect.UNSAFE: "runs again only when a person says so.",
}


# The report


def _failed(name: str, tried: _Tried, found: str, again: str) -> ScheduleFailed:
    assert tried.error is not None
    token = tried.schedule.token
    lines = [
        f"{name} does not hold when {_in_words(tried.schedule)}.",
        "",
        f"  {type(tried.error).__name__}: {_first_line(tried.error)}",
        *_where(tried.error),
        *([f"  {tried.hint}"] if tried.hint else []),
        "",
        *(f"  {step}" for step in tried.steps),
        "",
        f"  schedule  {token}",
        f"  found     {found}",
        f"  again     {again.format(token=token)}",
    ]
    return ScheduleFailed("\n".join(lines), schedule=tried.schedule, error=tried.error, steps=tried.steps)


def _in_words(schedule: FaultSchedule) -> str:
    words = [WORDS[fault.kind].format(fault.at) for fault in sorted(schedule.faults, key=lambda fault: fault.at)]
    words += ["the calls of a round run in one process"] if schedule.here else []
    return ", and ".join(words) or "nothing goes wrong"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def _where(error: BaseException) -> list[str]:
    """The line of the scenario that raised, if it was one."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    last = frames[-1] if frames else None
    if last is None or isinstance(error, DoubledEffect | ImpureTool):
        return []
    return [f"  {last.filename.rpartition('/')[2]}:{last.lineno}: {last.line}"]
