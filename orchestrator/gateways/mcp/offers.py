"""From what a server lists to what an agent's model is offered: chosen, named, and with an effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways.mcp import naming
from chordage.orchestrator.gateways.mcp.listing import Listed
from chordage.orchestrator.gateways.mcp.server import McpServer
from chordage.orchestrator.gateways.schemas import BadPattern, check_schema, is_checked, patterns_in, validator


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    name: str  # for the model
    tool: str  # for the server
    description: str
    schema: dict[str, Any]
    effect: Effect


@dataclass(frozen=True, kw_only=True, slots=True)
class Offers:
    by_name: dict[str, Offer] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()  # what somebody should know, and what stops nothing


def offers_of(server: McpServer, listed: Sequence[Listed]) -> Offers:
    """Raises RoomError for a tool that is asked for and not there, and where two tools would have one name."""
    names = [tool.name for tool in listed]
    _check_asked_for(server, names)
    chosen = [tool for tool in listed if server.wants(tool.name)]
    unusable = {tool.name: why for tool in chosen if (why := _why_unusable(tool.schema))}
    by_name: dict[str, Offer] = {}
    for tool in chosen:
        if tool.name not in unusable:
            offer = _offer(server, tool)
            _check_clash(server, offer, by_name.setdefault(offer.name, offer))
    left_out = [f"tool {name!r} is left out: {why}" for name, why in unusable.items()]
    unchecked = [remark for offer in by_name.values() for remark in _unchecked(offer)]
    return Offers(by_name=by_name, remarks=(*left_out, *unchecked, *_said_in_vain(server, names)))


def _unchecked(offer: Offer) -> Iterator[str]:
    passed_over = [
        pattern for pattern in dict.fromkeys(found for _, found in patterns_in(offer.schema)) if not is_checked(pattern)
    ]
    if passed_over:
        more = f" and {len(passed_over) - 1} more" if len(passed_over) > 1 else ""
        yield (
            f"tool {offer.tool!r}: the pattern {passed_over[0]!r:.100}{more} is not checked here, only by the server: "
            "it has lookarounds, back references or long repetitions, which could hold up a worker"
        )


def effect_of(server: McpServer, tool: Listed) -> Effect:
    """What agent.toml says of the tool; else what it says of all; else the server's word."""
    said = dict(server.effects).get(tool.name)
    return said or server.effect or tool.hinted


def _offer(server: McpServer, tool: Listed) -> Offer:
    schema = {**tool.schema, "type": "object", "properties": tool.schema.get("properties") or {}}
    name = naming.offered(server.name, tool.name)
    return Offer(name=name, tool=tool.name, description=tool.description, schema=schema, effect=effect_of(server, tool))


def _why_unusable(schema: dict[str, Any]) -> str | None:
    """One schema that a provider refuses would cost every call of the model, with all other tools."""
    from jsonschema.exceptions import SchemaError

    if (why := bounds.fault_of_value(schema, most_bytes=bounds.SCHEMA_BYTES)) is not None:
        return f"its schema {why}"
    if schema.get("type", "object") != "object":
        return f"its arguments are no object but {schema['type']!r}"
    try:
        check_schema(schema, validator(schema, foreign=True))
    except SchemaError as error:
        return f"its schema is none: {error.message}"
    except BadPattern as error:
        return f"its schema is none: {error}"
    return None


def _check_asked_for(server: McpServer, names: list[str]) -> None:
    for asked in server.only or ():
        if not any(fnmatchcase(name, asked) for name in names):
            raise RoomError(f"{server.place}.tools: the server has no tool {asked!r}; {_meant(asked, names)}")


def _check_clash(server: McpServer, offer: Offer, other: Offer) -> None:
    if other is not offer:
        raise RoomError(
            f"{server.place}: tools {other.tool!r} and {offer.tool!r} would both be called {offer.name}; "
            f'leave one of them out with except = ["{offer.tool}"]'
        )


def _said_in_vain(server: McpServer, names: list[str]) -> Iterator[str]:
    """Not an error: a server may drop a tool that nobody here wants. But a typo in `except` lets a tool through."""
    for pattern in server.without:
        if not any(fnmatchcase(name, pattern) for name in names):
            yield f"except names {pattern!r}, and the server has no such tool; {_meant(pattern, names)}"
    for name, _effect in server.effects:
        if name not in names:
            yield f"effects names {name!r}, and the server has no such tool; {_meant(name, names)}"


def _meant(wrong: str, names: list[str]) -> str:
    close = get_close_matches(wrong, names, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"it has: {', '.join(sorted(names))}" if names else "it has none"
