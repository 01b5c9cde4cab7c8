"""Structured output: the demand, as the model reads it; the JSON value in a reply; and the verdict on it.

The value is the whole reply, its one fenced block, or all from the first bracket to the last. Where two readings are
possible there is none: two blocks, two values in a row, two equal keys in an object. What JSON does not have (NaN,
numbers that no float can hold) is refused, although Python would read it. Time grows in proportion to the text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.reasons import Ending, failed
from chordage.orchestrator.core.text import loads_json

INVALID = "output_invalid"  # the model answered with something else, twice
UNCHECKED = "output_check"  # the room's own code could not decide whether it fits

COMPLAINTS = 20  # a list of a thousand wrong items is understood from twenty of them
COMPLAINT_LENGTH = 300
DEPTH = 64  # levels; deeper values break readers further down
NEAR = 40  # characters of the text that are shown on each side of a mistake

_FENCE = re.compile(r"```+[ \t]*(\w*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    value: Any

    def details(self) -> dict[str, Any]:
        """As the end of the run records it. A run without output has no such key: null is a value too."""
        return {"output": self.value}


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """There will be no output."""

    ending: Ending


Verdict = Accepted | Refused | Ended


def demand(schema: dict[str, Any]) -> str:
    """For the system text."""
    return (
        "Your final answer must be exactly one JSON value that fits the JSON Schema below, and nothing else: no words "
        "around it, no code fence. You may use tools first, as far as you have any; this is about the answer you "
        f"finish with.\n\n{json.dumps(schema, ensure_ascii=False)}"
    )


def listed(complaints: Sequence[str]) -> str:
    """The first complaints, as a list where there are several."""
    lines = [_shortened(complaint) for complaint in complaints[:COMPLAINTS]]
    if len(complaints) > COMPLAINTS:
        lines.append("and more")
    return "\n".join(f"- {line}" for line in lines) if len(lines) > 1 else "".join(lines)


def _shortened(complaint: str) -> str:
    """Both ends are kept: the place, and what is wrong. The value in between is cut."""
    half = COMPLAINT_LENGTH // 2
    return complaint if len(complaint) <= COMPLAINT_LENGTH else f"{complaint[:half]} ... {complaint[-half:]}"


def given_up(why: str) -> Ended:
    in_one_line = "; ".join(line.removeprefix("- ") for line in why.splitlines())
    return Ended(ending=failed(INVALID, f"the answer is not the demanded output, also after one repair: {in_one_line}"))


def place(parts: Sequence[str | int]) -> str:
    """A JSON path: $.items[0].price"""
    return "$" + "".join(_part(part) for part in parts)


def _part(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if part.isidentifier() else f"[{json.dumps(part, ensure_ascii=False)}]"


class NoValue(Exception):
    """The text holds no JSON value, or more than one. The message is for the model that wrote it."""


def value_in(text: str) -> Any:
    """Raises NoValue."""
    whole = text.strip().removeprefix("\ufeff").strip()
    if not whole:
        raise NoValue("it is empty")
    try:
        value = _loaded(whole)
    except NoValue:
        inner = _inner(whole)
        if inner is None:
            raise
        value = _loaded(inner)
    if bounds.depth_of(value) > DEPTH:
        raise NoValue(f"it is nested more than {DEPTH} levels deep")
    return value


def _inner(whole: str) -> str | None:
    """The part of the text that may be the value, where the whole is not."""
    blocks = list(_blocks(whole))
    inner = [block for word, block in blocks if word == "json"] or [block for word, block in blocks if not word]
    if len(inner) > 1:
        raise NoValue(f"it holds {len(inner)} blocks of JSON, and it is not clear which one counts")
    return inner[0] if inner else _bracketed(whole)


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Each fenced block, with the word behind its fence. JSON has no line end inside a string, so a fence ends it."""
    word: str | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line.strip())
        if fence and word is None:
            word, lines = fence[1].lower(), []
        elif fence and not fence[1] and word is not None:
            yield word, "\n".join(lines)
            word = None
        else:
            lines.append(line)


def _bracketed(text: str) -> str | None:
    """All of it, and not the first value that can be read: what follows may be another, or the rest of a broken one."""
    starts = [place for bracket in "{[" if (place := text.find(bracket)) >= 0]
    end = max(text.rfind("}"), text.rfind("]"))
    return text[min(starts) : end + 1] if starts and end > min(starts) else None


def _loaded(text: str) -> Any:
    try:
        return loads_json(text, object_pairs_hook=_object)
    except bounds.TooDeep as error:
        raise NoValue(f"it is nested more than {DEPTH} levels deep") from error
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - NEAR) : error.pos + NEAR]
        why = f"{error.msg} at line {error.lineno}, column {error.colno}, near {near!r}"
        raise NoValue(f"it is not one JSON value: {why}") from error
    except ValueError as error:  # also Python's own limit for the digits of a number
        raise NoValue(f"it is not one JSON value: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise NoValue(f"the key {name!r} occurs twice in one object")
    return members
