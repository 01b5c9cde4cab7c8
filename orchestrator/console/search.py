"""The language of the search box: `status:waiting agent:clerk tool:refund "order 17" tokens:>1000 cost:>0.10 age:<1d`.

Words without a name are searched for in messages, or are the beginning of an id. A text that cannot be understood is a
fault with what to write instead; it never means everything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from chordage.orchestrator.core.errors import alternatives
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.prices import NANOS, exact
from chordage.orchestrator.views import TurnFilter, TurnState

NAMES = ("status", "agent", "tool", "text", "group", "tenant", "thread", "tokens", "cost", "age")
OPEN = "open"  # a status of its own: all that is not done
_TERM = re.compile(r'(?:(\w+):)?(?:"([^"]*)"|(\S+))')
_AGE = re.compile(r"([<>])(\d+(?:\.\d+)?)(s|m|min|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_TOKENS = re.compile(r"([<>])(\d+)(k|M)?")
_COST = re.compile(r"([<>])\$?(\d{1,12}(?:\.\d{1,9})?)")
_ID = re.compile(r"[0-9a-fA-F]{4,8}(-[0-9a-fA-F-]*)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSearch:
    """What a text in the search box means. `ids`: words that may be the beginning of an id."""

    text: str
    wanted: TurnFilter
    ids: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def needs_texts(self) -> bool:
        """It would tell what is in a message."""
        return self.wanted.text is not None


def read_search(text: str, now: datetime) -> RunSearch:
    wanted, ids, words, faults = TurnFilter(), [], [], []
    for match in _TERM.finditer(text):
        name, quoted, bare = match.groups()
        value = quoted if quoted is not None else bare
        if name is None and quoted is None and _may_be_id(value):
            ids.append(value)
        elif name is None or name == "text":
            words.append(value)
        else:
            try:
                wanted = _with_term(wanted, name, value, now)
            except ValueError as error:
                faults.append(str(error))
    if words:
        wanted = replace(wanted, text=" ".join(words))
    return RunSearch(text=text, wanted=wanted, ids=tuple(ids), faults=tuple(faults))


def _may_be_id(word: str) -> bool:
    """A thread id has its space in front: `api:order-17`."""
    return bool(_ID.fullmatch(word))


def _with_term(wanted: TurnFilter, name: str, value: str, now: datetime) -> TurnFilter:
    match name:
        case "status" | "is":
            return replace(wanted, states=wanted.states | _states(value))
        case "agent":
            return replace(wanted, agent=value)
        case "tool":
            return replace(wanted, tool=value)
        case "tenant":
            return replace(wanted, tenant=value)
        case "thread":
            return replace(wanted, thread_id=value)
        case "group":
            if value not in set(Group):
                raise ValueError(f"group:{value}: {alternatives(value, [group.value for group in Group])}")
            return replace(wanted, group=Group(value))
        case "tokens":
            return _with_tokens(wanted, value)
        case "age":
            return _with_age(wanted, value, now)
        case "cost":
            return _with_cost(wanted, value)
    raise ValueError(f"{name}: {alternatives(name, NAMES)}")


def _states(value: str) -> frozenset[TurnState]:
    states: set[TurnState] = set()
    for word in value.split(","):
        if word == OPEN:
            states |= {TurnState.QUEUED, TurnState.RUNNING, TurnState.WAITING}
        elif word in set(TurnState):
            states.add(TurnState(word))
        else:
            raise ValueError(f"status:{word}: {alternatives(word, [OPEN, *(state.value for state in TurnState)])}")
    return frozenset(states)


def _with_tokens(wanted: TurnFilter, value: str) -> TurnFilter:
    match = _TOKENS.fullmatch(value)
    if match is None:
        raise ValueError(f"tokens:{value}: write tokens:>1000 or tokens:<20k")
    number = min(int(match[2]) * {None: 1, "k": 1000, "M": 1_000_000}[match[3]], 2**62)
    return replace(wanted, more_tokens=number) if match[1] == ">" else replace(wanted, fewer_tokens=number)


def _with_cost(wanted: TurnFilter, value: str) -> TurnFilter:
    match = _COST.fullmatch(value)
    if match is None:
        raise ValueError(f"cost:{value}: write dollars, as in cost:>0.10 or cost:<2")
    nanos = min(int(exact(match[2]) * NANOS), 2**62)
    return replace(wanted, dearer_than=nanos) if match[1] == ">" else replace(wanted, cheaper_than=nanos)


def _with_age(wanted: TurnFilter, value: str, now: datetime) -> TurnFilter:
    match = _AGE.fullmatch(value)
    if match is None:
        raise ValueError(f"age:{value}: write age:<1d or age:>30min")
    try:
        moment = now - timedelta(seconds=float(match[2]) * _SECONDS[match[3]])
    except OverflowError as error:
        raise ValueError(f"age:{value}: that is before all time") from error
    return replace(wanted, since=moment) if match[1] == "<" else replace(wanted, until=moment)
