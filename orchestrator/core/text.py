"""Text and JSON from outside: made storable in every database, read, compared, and checked.

PostgreSQL stores no NUL, and UTF-8 has no half of a surrogate pair. In a reply or a result such characters are replaced
by U+FFFD or a question mark, so that nothing is lost for one of them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.errors import alternatives
from chordage.orchestrator.core.model import Reply, ToolAsk

E = TypeVar("E", bound=StrEnum)
NAME_MAX = 200  # the width of the columns
_SECRET = re.compile(
    "token|secret|password|passwd|passphrase|pwd|credential|authorization|dsn|(api|access|private)_?key"
)


def clean_text(raw: str) -> str:
    return raw.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def clean_json(value: Any) -> Any:
    match value:
        case str():
            return clean_text(value)
        case dict():
            return {clean_text(str(key)): clean_json(member) for key, member in value.items()}
        case list() | tuple():
            return [clean_json(member) for member in value]
        case _:
            return value


def clean_reply(raw: Reply) -> Reply:
    return replace(
        raw, text=clean_text(raw.text), asks=tuple(_ask(ask) for ask in raw.asks), extra=clean_json(raw.extra),
        reasoning=clean_text(raw.reasoning),
    )  # fmt: skip


def names_secret(key: str) -> bool:
    """An option of that name may hold a secret, which is not to be shown."""
    return _SECRET.search(key.lower().replace("-", "_")) is not None


def written_forms(name: str) -> set[str]:
    """As text has it, and as JSON does."""
    return {name, json.dumps(name)[1:-1], json.dumps(name, ensure_ascii=False)[1:-1]}


def mention_of(names: Iterable[str]) -> re.Pattern[str]:
    r"""Any of these names as a whole word, also in JSON, where `\n` may stand before it."""
    forms = sorted({re.escape(form) for name in names for form in written_forms(name)}, key=len, reverse=True)
    return re.compile(rf"(?:(?<![^\W_])|(?<=\\[bfnrt]))(?:{'|'.join(forms)})(?![^\W_])")


def _ask(raw: ToolAsk) -> ToolAsk:
    return ToolAsk(
        id=clean_text(raw.id)[:NAME_MAX],
        name=clean_text(raw.name)[:NAME_MAX],
        arguments=None if raw.arguments is None else clean_json(raw.arguments),
        raw=clean_text(raw.raw),
    )


def loads_json(text: str | bytes, **how: Any) -> Any:
    """Raises ValueError, also for values that are nested too deep, and for NaN and infinity: Python reads these, but
    JSON does not have them, and PostgreSQL would refuse the row.
    """
    return bounds.loads_json(text, parse_constant=_refuse_constant, parse_float=_finite, **how)


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


def _finite(digits: str) -> float:
    number = float(digits)
    must(math.isfinite(number), f"the number {digits[:40]} is too large")
    return number


def canonical(value: Any) -> str:
    """The same text for equal JSON; 1 and true are different."""
    return json.dumps(value, sort_keys=True, default=repr)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def each_once(members: Iterable[Any]) -> list[Any]:
    """Sorted, so that the order of arrival does not matter."""
    unique = {canonical(member): member for member in members}
    return [unique[key] for key in sorted(unique)]


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def must(condition: object, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def one_of(kind: type[E], given: str, name: str) -> E:
    must(given in set(kind), f"{name} must be one of {', '.join(kind)}; got {given!r}")
    return kind(given)


def field_fault(fault: Mapping[str, Any], known: Collection[str] = ()) -> str:
    """What is wrong with a field, of the `errors()` of pydantic. `known`: which fields there could be."""
    match fault["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return "there is no such field" + (f"; {alternatives(str(fault['loc'][-1]), known)}" if known else "")
        case _:
            return str(fault["msg"]).removeprefix("Value error, ")


def text_of(value: object, name: str, *, blank: bool = False) -> str:
    """As it can be stored. Raises ValueError for what is no text, or blank."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text; got {value!r}")  # noqa: TRY004 - a wrong value of an argument
    must(blank or value.strip(), f"{name} is blank")
    return clean_text(value)


def must_be_json(value: Any, name: str) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be something JSON has ({error}); got {value!r}") from error
