"""Structured output: what may come of a reply that was to fit a schema, and what the model is told of the demand."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.reasons import Ending, failed
from chordage.orchestrator.core.text import loads_json

INVALID = "output_invalid"  # the model answered with something else, twice
UNCHECKED = "output_check"  # the room's own code could not say whether it fits

COMPLAINTS = 20  # a list of a thousand wrong items is understood from twenty of them
COMPLAINT_LENGTH = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    value: Any

    def details(self) -> dict[str, Any]:
        """As it stands with the end of the run. Only where there is one: null is a value too."""
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
    """Each with the place it is about, as far as they help."""
    lines = [_shortened(complaint) for complaint in complaints[:COMPLAINTS]]
    if len(complaints) > COMPLAINTS:
        lines.append("and more")
    return "\n".join(f"- {line}" for line in lines) if len(lines) > 1 else "".join(lines)


def _shortened(complaint: str) -> str:
    """The ends say what matters: where it is, and what is wrong. In between stands what was sent."""
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


# The JSON value in what a model said: all of it, its one fenced block, or all from the first bracket to the last.
#
# Where two readings are possible there is none: two blocks, two values in a row, a key that stands twice. What JSON
# does not have (NaN, numbers beyond all floats) is refused, although Python would read it. Time grows with the text
# and no faster, whatever was sent.

DEPTH = 64  # deeper values break readers further down
NEAR = 40  # characters of the text that are shown around a mistake

_FENCE = re.compile(r"```+[ \t]*(\w*)")


class NoValue(Exception):
    """There is no JSON value in the text, or more than one; says why, to the model that wrote it."""


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
    if _is_deeper_than(value, DEPTH):
        raise NoValue(f"it is nested more than {DEPTH} levels deep")
    return value


def _inner(whole: str) -> str | None:
    """The part of the text that may be the value, where the whole is not."""
    blocks = list(_blocks(whole))
    found = [inner for word, inner in blocks if word == "json"] or [inner for word, inner in blocks if not word]
    if len(found) > 1:
        raise NoValue(f"it holds {len(found)} blocks of JSON, and it is not clear which one counts")
    return found[0] if found else _bracketed(whole)


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
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise NoValue(f"the key {twice!r} stands twice in one object")
    return found


def _is_deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [member for one in level for member in _members(one) if isinstance(member, dict | list)]
        if not level:
            return False
    return True


def _members(value: Any) -> Iterable[Any]:
    match value:
        case dict():
            return value.values()
        case list():
            return value
        case _:
            return ()
