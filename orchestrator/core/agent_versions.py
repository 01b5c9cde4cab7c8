"""The versions of an agent: what decides how it behaves, the digest of that, and how two versions differ.

A definition is JSON. Equal definitions have equal digests on every machine, whatever the order of their keys. What has
its default is left out, so that a release which adds a setting changes no digest. No secret is in it: a value that the
environment has is there by the name of its variable, and one that may be a secret by a `fingerprint`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from difflib import unified_diff
from enum import Enum, StrEnum
from functools import cache
from types import UnionType
from typing import Any, NamedTuple, Protocol, get_args, get_origin, get_type_hints

from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.text import names_secret

FORMAT = 1  # of a definition; another one makes all digests new
LENGTH = 32  # characters of a digest
SHOWN = 12  # characters of a digest where people read it
FINGERPRINT = 8  # characters: a change shows, and the value cannot be found out by trying
FROM_ENVIRONMENT = "_env"  # at the end of a key: its value is the name of a variable
# Fields of an agent that are made of the others.
NOT_IN_DEFINITION = frozenset({"named_models", "digest", "pinned_tools"})


class OfAgent(Protocol):
    """What says which agent a run has, and in which version; None: not known. A run itself does."""

    @property
    def agent(self) -> str: ...
    @property
    def agent_digest(self) -> str | None: ...


class AgentPin(NamedTuple):
    """As far as a caller has it without its run."""

    agent: str
    agent_digest: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentVersion:
    digest: str
    agent: str  # its name
    definition: Mapping[str, Any]


def version_of(agent: str, definition: Mapping[str, Any]) -> AgentVersion:
    return AgentVersion(digest=_digest(canonical_text(definition)), agent=agent, definition=definition)


def canonical_text(definition: Mapping[str, Any]) -> str:
    return json.dumps(definition, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(text: str) -> str:
    import hashlib  # loads a library of its own: `import chordage` alone must not pay for it

    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


# What a definition is made of.


def plain(value: Any, *, is_schema: bool = False) -> Any:
    """As JSON. Of a dataclass, the fields that do not have their defaults; values of keys that sound like a secret are
    fingerprints. `is_schema`: of JSON, in which a table says what the value of its key looks like, and holds none.
    """
    match value:
        case Enum():
            return value.value
        case bool() | int() | str() | None:
            return value
        case float():
            return value if math.isfinite(value) else repr(value)
        case Mapping():
            return {str(key): _plain_or_hidden(str(key), each, is_schema=is_schema) for key, each in value.items()}
        case list() | tuple():
            return [plain(each, is_schema=is_schema) for each in value]
        case set() | frozenset():
            return sorted((plain(each) for each in value), key=lambda each: json.dumps(each, sort_keys=True))
        case _ if is_dataclass(value):
            defaults = _defaults(value.__class__)
            given = ((name, getattr(value, name)) for name in defaults)
            return {name: plain(each, is_schema=name == "schema") for name, each in given if defaults[name] != each}
        case _:
            return str(value)  # a date of TOML


def _plain_or_hidden(key: str, value: Any, *, is_schema: bool = False) -> Any:
    name = key.lower()
    is_secret = names_secret(key) and not name.endswith(FROM_ENVIRONMENT)
    is_description = is_schema and isinstance(value, Mapping)
    if is_secret and not is_description and _has_text(value):
        return fingerprint(value)
    return plain(value, is_schema=is_schema or name.endswith("schema"))


def _has_text(value: Any) -> bool:
    match value:
        case Mapping():
            return any(_has_text(each) for key, each in value.items() if not str(key).endswith(FROM_ENVIRONMENT))
        case list() | tuple():
            return any(_has_text(each) for each in value)
    return isinstance(value, str)


@cache
def _defaults(kind: type[Any]) -> dict[str, Any]:
    """Of the fields that belong into a definition; MISSING where there is none."""
    return {
        field.name: field.default_factory() if field.default_factory is not MISSING else field.default
        for field in fields(kind)
        if field.name not in NOT_IN_DEFINITION
    }


def fingerprint(value: Any) -> dict[str, str]:
    return {"fingerprint": _digest(json.dumps(plain(value), sort_keys=True))[:FINGERPRINT]}


# An agent as it was in a version.


def restored(version: AgentVersion, today: AgentSpec) -> AgentSpec | None:
    """What is hidden in the version has its value of today. None: it cannot be made, because another release has
    written it, or today's file has no value at that place.
    """
    definition = version.definition
    if definition.get("format", FORMAT) != FORMAT:
        return None
    try:
        spec: AgentSpec = _instance(AgentSpec, definition["agent"], today)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return replace(spec, digest=version.digest, pinned_tools=tuple(definition.get("tools", ())))


def _instance(kind: type[Any], stored: Mapping[str, Any], today: Any) -> Any:
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind) if field.name in stored]
    return kind(**{name: _read(hints[name], stored[name], getattr(today, name, None)) for name in names})


def _read(hint: Any, stored: Any, today: Any) -> Any:
    """`today`: what is at the same place in today's definition, or None."""
    if get_origin(hint) is UnionType:
        hint = get_args(hint)[0]
    if stored is None:
        return None
    item, kind = get_args(hint), get_origin(hint) or hint
    match stored:
        case list() if kind is tuple:
            return tuple(_read(item[0], each, _same(each, today or ())) for each in stored)
        case Mapping() if is_dataclass(kind):
            return _instance(hint, stored, today)
        case Mapping() if item and item[1] is not Any:
            return {key: _read(item[1], each, (today or {}).get(key)) for key, each in stored.items()}
        case str() | int() | float() if kind is float or issubclass(kind, Enum):
            return kind(stored)
        case _:
            return _opened("", stored, today)


def _same(stored: Any, today: Iterable[Any]) -> Any:
    """Of today's plugins, the one with that name."""
    name = stored.get("use") if isinstance(stored, Mapping) else None
    return next((one for one in today if name is not None and getattr(one, "use", None) == name), None)


def _opened(key: str, stored: Any, today: Any) -> Any:
    """JSON with the values that it hides."""
    if today is not None and _plain_or_hidden(key, today) == stored:
        return today
    match stored:
        case {"fingerprint": str()} if len(stored) == 1:
            if today is None:
                raise KeyError(key)
            return today
        case Mapping():
            todays = today if isinstance(today, Mapping) else {}
            return {name: _opened(name, each, todays.get(name)) for name, each in stored.items()}
        case _:
            return stored


# How two versions differ.


class DiffKind(StrEnum):
    FILE = "file"  # the names of the two sides
    PLACE = "place"  # the numbers of the lines that follow
    SAME = "same"
    ADDED = "added"
    REMOVED = "removed"


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffLine:
    """`text`: with its mark, as `diff -u` prints it."""

    kind: DiffKind
    text: str


_KINDS = (
    ("--- ", DiffKind.FILE), ("+++ ", DiffKind.FILE), ("@@", DiffKind.PLACE), ("+", DiffKind.ADDED),
    ("-", DiffKind.REMOVED),
)  # fmt: skip


def difference(old: AgentVersion, new: AgentVersion) -> tuple[DiffLine, ...]:
    """First of the instructions, then of the rest of the definition. Empty where both are the same."""
    return (*_part("instructions", old, new, _instructions), *_part("definition", old, new, _rest))


def _part(name: str, old: AgentVersion, new: AgentVersion, lines_of: Any) -> Iterator[DiffLine]:
    first, second = (f"{name} {version.digest[:SHOWN]}" for version in (old, new))
    lines = unified_diff(lines_of(old), lines_of(new), first, second, lineterm="")
    for number, text in enumerate(lines):
        # Only the first two lines are names: a line of the text may begin like one.
        kinds: Iterable[tuple[str, DiffKind]] = _KINDS if number < 2 else _KINDS[2:]
        kind = next((kind for mark, kind in kinds if text.startswith(mark)), DiffKind.SAME)
        yield DiffLine(kind=kind, text=text)


def _instructions(version: AgentVersion) -> list[str]:
    return str(version.definition["agent"].get("instructions", "")).splitlines()


def _rest(version: AgentVersion) -> list[str]:
    agent = {key: value for key, value in version.definition["agent"].items() if key != "instructions"}
    return json.dumps({**version.definition, "agent": agent}, indent=2, sort_keys=True, ensure_ascii=False).splitlines()
