"""From the plain data of a script to its replies. What is wrong is said with the key it is wrong in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, TypeVar

from chordage.orchestrator.core.model import Fault, StopReason, Usage
from chordage.orchestrator.gateways.models.script import Fail, How, ScriptedCall, ScriptedReply, When

E = TypeVar("E", bound=StrEnum)
_NUMBER = (int, float)


class BadScript(ValueError):
    """The data of a script is not as it must be. Whoever knows the file and the line makes it a RoomError."""


def reply(data: object) -> ScriptedReply:
    if isinstance(data, str):
        return ScriptedReply(text=data)
    known = ("text", "tool_calls", "when", "stop", "usage", "latency", "pace", "chunk", "fail")
    found = _mapping(data, "a reply", known)
    return ScriptedReply(
        text=_value(found, "text", str, ""),
        calls=tuple(_call(item) for item in _value(found, "tool_calls", list, [])),
        when=_when(found["when"]) if "when" in found else None,
        stop=_choice(found["stop"], "stop", StopReason) if "stop" in found else None,
        usage=_usage(found["usage"]) if "usage" in found else None,
        latency=_at_least(found, "latency", 0),
        pace=_at_least(found, "pace", 0),
        chunk=int(_at_least(found, "chunk", 1, 12)),
        fail=_fail(found["fail"]) if "fail" in found else None,
    )


def _call(data: object) -> ScriptedCall:
    found = _mapping(data, "a tool call", ("name", "arguments", "id"))
    if not _value(found, "name", str, ""):
        raise BadScript("a tool call needs a name")
    arguments = found.get("arguments") or {}
    if not isinstance(arguments, (dict, str)):
        raise BadScript("arguments must be a mapping, or a text to be sent as it is")
    return ScriptedCall(name=found["name"], arguments=arguments, id=_value(found, "id", str, None))


def _when(data: object) -> When:
    if isinstance(data, str):
        return When(contains=data)
    found = _mapping(data, "when", ("contains", "regex", "system", "turn", "round", "plan"))
    regex = _value(found, "regex", str, "")
    try:
        re.compile(regex)
    except re.error as error:
        raise BadScript(f"regex {regex!r} is broken: {error}") from error
    return When(
        contains=_value(found, "contains", str, ""),
        regex=regex,
        system=_value(found, "system", str, ""),
        turn=_value(found, "turn", int, None),
        round=_value(found, "round", int, None),
        plan=_flag(found, "plan"),
    )


def _fail(data: object) -> Fail:
    known = ("fault", "times", "retry_after", "how", "after")
    found = _mapping({"fault": data} if isinstance(data, str) else data, "fail", known)
    if "fault" not in found:
        raise BadScript(f"fail needs a fault: {_names(Fault)}")
    fault = _choice(found["fault"], "fault", Fault)
    return Fail(
        fault=fault,
        times=_value(found, "times", int, None),
        retry_after=_value(found, "retry_after", _NUMBER, None),
        how=_choice(found["how"], "how", How) if "how" in found else _USUAL.get(fault, How.STATUS),
        after=int(_at_least(found, "after", 0, 2)),
    )


_USUAL = {
    Fault.TIMEOUT: How.HANG,
    Fault.CONNECTION: How.RESET,
    Fault.TRUNCATED: How.CUT,
    Fault.MALFORMED: How.JSON,
}


def _usage(data: object) -> Usage:
    found = _mapping(data, "usage", ("input", "output", "cached", "cache_write"))
    return Usage(
        input_tokens=int(_at_least(found, "input", 0)),
        output_tokens=int(_at_least(found, "output", 0)),
        cached_tokens=int(_at_least(found, "cached", 0)),
        cache_write_tokens=int(_at_least(found, "cache_write", 0)),
    )


def _mapping(data: object, what: str, known: Iterable[str]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise BadScript(f"{what} must be a mapping or a text, not {type(data).__name__}")
    unknown = [key for key in data if key not in known]
    if unknown:
        raise BadScript(f"{unknown[0]!r} is unknown in {what}: choose from {', '.join(known)}")
    return data


def _value(found: dict[str, Any], key: str, kind: type | tuple[type, ...], default: Any) -> Any:
    value = found.get(key)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadScript(f"{key} has the wrong type, {type(value).__name__}")
    return value


def _flag(found: dict[str, Any], key: str) -> bool | None:
    value = found.get(key)
    if value is not None and not isinstance(value, bool):
        raise BadScript(f"{key} must be true or false, not {value!r}")
    return value


def _at_least(found: dict[str, Any], key: str, least: float, default: float = 0) -> float:
    value: float = _value(found, key, _NUMBER, default)
    if not value >= least:
        raise BadScript(f"{key} must be at least {least:g}")
    return value


def _choice(value: object, key: str, kind: type[E]) -> E:
    try:
        return kind(str(value))
    except ValueError as error:
        raise BadScript(f"{key} {value!r} is unknown: choose from {_names(kind)}") from error


def _names(kind: type[StrEnum]) -> str:
    return ", ".join(kind)
