"""Schedules: what goes wrong in a run of a world, and at which place. The same schedule gives the same run.

A place is a number: the third delivery of a message, the fifth commit, the second call of a tool, the first effect.
Everything else happens as if nothing were wrong.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class FaultKind(StrEnum):
    """What may go wrong. The name is what is written in the token of a schedule."""

    DROP = "drop"  # this delivery never comes
    DOUBLE = "double"  # ... comes a second time, behind all others
    DELAY = "delay"  # ... comes later than the message behind it
    LOSE_REDIS = "lose-redis"  # at this delivery all messages, locks and marks are lost
    KILL_BEFORE_COMMIT = "kill-before-commit"
    KILL_AFTER_COMMIT = "kill-after-commit"
    KILL_BEFORE_TOOL = "kill-before-tool"
    KILL_AFTER_EFFECT = "kill-after-effect"  # inside the tool
    KILL_AFTER_TOOL = "kill-after-tool"  # it returned, and its result is not stored
    STALL_IN_TOOL = "stall-in-tool"  # the process stops until others take it for dead, and then continues


OF_DELIVERIES = (FaultKind.DROP, FaultKind.DOUBLE, FaultKind.DELAY, FaultKind.LOSE_REDIS)
OF_COMMITS = (FaultKind.KILL_BEFORE_COMMIT, FaultKind.KILL_AFTER_COMMIT)
OF_TOOLS = (FaultKind.KILL_BEFORE_TOOL, FaultKind.KILL_AFTER_TOOL, FaultKind.STALL_IN_TOOL)
HERE = "here"  # the calls of a round run in the process of their run, one after the other
PLAIN_WORD = "plain"
_FAULT = re.compile(r"([a-z-]+):([1-9]\d*)")
AT_MOST = 5  # faults of a random schedule


class ScheduleRefused(ValueError):
    """The token is not that of a schedule."""


@dataclass(frozen=True, order=True, slots=True)
class ScheduledFault:
    kind: FaultKind
    at: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.at}"


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultSchedule:
    faults: frozenset[ScheduledFault] = frozenset()
    here: bool = False

    @classmethod
    def of(cls, *faults: tuple[FaultKind, int], here: bool = False) -> FaultSchedule:
        return cls(faults=frozenset(ScheduledFault(kind, at) for kind, at in faults), here=here)

    @classmethod
    def read(cls, token: str) -> FaultSchedule:
        """Raises ScheduleRefused."""
        words = [] if token == PLAIN_WORD else token.split(",")
        faults: set[ScheduledFault] = set()
        for word in words:
            match = _FAULT.fullmatch(word)
            if word != HERE and (match is None or match[1] not in set(FaultKind)):
                known = ", ".join(f"{kind}:NUMBER" for kind in FaultKind)
                raise ScheduleRefused(
                    f"schedule {token!r}: {word!r} is none of {known}, {HERE}: separate them by commas, or write "
                    f"{PLAIN_WORD!r} for none"
                )
            if match is not None:
                faults.add(ScheduledFault(FaultKind(match[1]), int(match[2])))
        return cls(faults=frozenset(faults), here=HERE in words)

    @property
    def token(self) -> str:
        """Reads as the schedule, and is read as it."""
        order = list(FaultKind)
        words = sorted(self.faults, key=lambda fault: (fault.at, order.index(fault.kind)))
        return ",".join([*([HERE] if self.here else []), *map(str, words)]) or PLAIN_WORD

    def has(self, kind: FaultKind, at: int) -> bool:
        return ScheduledFault(kind, at) in self.faults

    def kills(self) -> list[tuple[int, bool]]:
        """The numbers of the commits at which the process dies, in order, each with whether it does before it."""
        return sorted(
            (fault.at, fault.kind is FaultKind.KILL_BEFORE_COMMIT) for fault in self.faults if fault.kind in OF_COMMITS
        )


PLAIN = FaultSchedule()


@dataclass(kw_only=True, slots=True)
class FaultPlaces:
    """Where something could have gone wrong in a run."""

    deliveries: int = 0
    may_be_late: set[int] = field(default_factory=set)  # deliveries that had another message behind them
    commits: set[int] = field(default_factory=set)
    transactions: set[int] = field(default_factory=set)  # commits that are not a single statement
    tools: int = 0
    effects: int = 0


def single_faults(places: FaultPlaces, *, here: bool) -> Iterator[FaultSchedule]:
    """One schedule for each thing that could have gone wrong, what is the easiest to understand first."""
    for kind in OF_TOOLS:
        yield from (FaultSchedule.of((kind, at), here=here) for at in range(1, places.tools + 1))
    for at in range(1, places.effects + 1):
        yield FaultSchedule.of((FaultKind.KILL_AFTER_EFFECT, at), here=here)
    before = sorted(places.commits & places.transactions)
    yield from (FaultSchedule.of((FaultKind.KILL_BEFORE_COMMIT, at), here=here) for at in before)
    yield from (FaultSchedule.of((FaultKind.KILL_AFTER_COMMIT, at), here=here) for at in sorted(places.commits))
    for kind in OF_DELIVERIES:
        for at in range(1, places.deliveries + 1):
            if kind is not FaultKind.DELAY or at in places.may_be_late:
                yield FaultSchedule.of((kind, at), here=here)


def random_schedules(places: FaultPlaces, seed: int, number: int) -> Iterator[FaultSchedule]:
    """Several faults each. What goes wrong makes a run longer, so places behind its end are drawn too."""
    ends = {
        **dict.fromkeys(OF_DELIVERIES, places.deliveries),
        **dict.fromkeys(OF_COMMITS, max(places.commits, default=0)),
        **dict.fromkeys(OF_TOOLS, places.tools),
        FaultKind.KILL_AFTER_EFFECT: places.effects,
    }
    kinds = [kind for kind, end in ends.items() if end]
    for which in range(number):
        rng = random.Random(f"{seed}:{which}")
        drawn = [rng.choice(kinds) for _ in range(rng.randint(2, AT_MOST))] if kinds else []
        yield FaultSchedule.of(
            *((kind, rng.randint(1, ends[kind] + ends[kind] // 2 + 1)) for kind in drawn), here=rng.random() < 0.5
        )


def shrink(schedule: FaultSchedule, fails: Callable[[FaultSchedule], bool], *, most: int = 200) -> FaultSchedule:
    """The smallest that still fails, as far as `most` runs lead: fewer faults, then earlier ones."""
    left = most

    def holds(candidate: FaultSchedule) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    smaller = True
    while smaller and left > 0:
        smaller = False
        for candidate in _smaller(schedule):
            if holds(candidate):
                schedule, smaller = candidate, True
                break
    return schedule


def _smaller(schedule: FaultSchedule) -> Sequence[FaultSchedule]:
    faults = sorted(schedule.faults)
    without = [FaultSchedule(faults=schedule.faults - {fault}, here=schedule.here) for fault in faults]
    elsewhere = [FaultSchedule(faults=schedule.faults)] if schedule.here else []
    halves = []
    if len(faults) > 3:
        middle = len(faults) // 2
        halves = [
            FaultSchedule(faults=frozenset(part), here=schedule.here) for part in (faults[:middle], faults[middle:])
        ]
    earlier = [
        FaultSchedule(faults=schedule.faults - {fault} | {ScheduledFault(fault.kind, at)}, here=schedule.here)
        for fault in faults
        for at in sorted({1, fault.at // 2, fault.at - 1})
        if 0 < at < fault.at
    ]
    return [*halves, *without, *elsewhere, *earlier]
