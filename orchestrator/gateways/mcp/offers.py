"""From the tools that a server lists to those that an agent's model is offered: chosen, named, and with an effect.

The schemas of tools and of their results come from outside. References to other documents are not followed, and each
check takes a bounded number of steps, or one argument could hold up the worker (gateways/schemas.py). What cannot be
checked for either reason is left to the server, which checks for itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any

import structlog

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways import schemas
from chordage.orchestrator.gateways.mcp.servers import McpServer, prefix
from chordage.orchestrator.gateways.schemas import BadSchema, TooCostly
from chordage.orchestrator.gateways.tools.arguments import Arguments, InvalidArguments

log = structlog.get_logger()

LONGEST_NAME = 64  # that every provider takes
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedTool:
    """One tool as the server describes it."""

    name: str
    description: str = ""
    schema: dict[str, Any]
    output: dict[str, Any] | None = None  # the schema of its structured results
    read_only: bool | None = None
    idempotent: bool | None = None

    @property
    def annotated_effect(self) -> Effect:
        """The server's own claim, unverified."""
        if self.read_only:
            return Effect.PURE
        return Effect.IDEMPOTENT if self.idempotent else Effect.UNSAFE


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ToolList:
    """All tools of a server at one moment; `at` by the monotonic clock."""

    tools: tuple[ListedTool, ...]
    at: float


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
    remarks: tuple[str, ...] = ()  # for a person to know; they stop nothing


def offered_name(server: str, tool: str) -> str:
    """The server's name, an underscore, and the tool's, in letters that every provider takes.

    A name that is too long is cut, and ends in a digest of the whole, so that names of the same beginning differ.
    """
    whole = prefix(server) + tool
    plain = _FORBIDDEN.sub("_", whole)
    if len(plain) <= LONGEST_NAME:
        return plain
    digest = sha256(whole.encode()).hexdigest()[:8]
    return f"{plain[: LONGEST_NAME - 9]}_{digest}"


def offers_of(server: McpServer, tools: Sequence[ListedTool]) -> Offers:
    """Raises RoomError for a tool that the agent asks for and the server lacks, and where two would have one name."""
    names = [tool.name for tool in tools]
    for pattern in server.only or ():
        if not any(fnmatchcase(name, pattern) for name in names):
            raise RoomError(f"{server.place}.tools: the server has no tool {pattern!r}; {_hint(pattern, names)}")
    chosen = [tool for tool in tools if server.wants(tool.name)]
    unusable = {tool.name: why for tool in chosen if (why := schemas.fault_of_tool(tool.schema))}
    by_name: dict[str, Offer] = {}
    for tool in chosen:
        if tool.name not in unusable:
            offer = _offer(server, tool)
            other = by_name.setdefault(offer.name, offer)
            if other is not offer:
                raise RoomError(
                    f"{server.place}: tools {other.tool!r} and {offer.tool!r} would both be called {offer.name}; "
                    f'leave one of them out with except = ["{offer.tool}"]'
                )
    left_out = [f"tool {name!r} is left out: {why}" for name, why in unusable.items()]
    unchecked = [remark for offer in by_name.values() for remark in _unchecked_patterns(offer)]
    return Offers(by_name=by_name, remarks=(*left_out, *unchecked, *_unmatched(server, names)))


def _offer(server: McpServer, tool: ListedTool) -> Offer:
    """Its effect: what agent.toml says of the tool, else of all tools, else the server's annotations."""
    return Offer(
        name=offered_name(server.name, tool.name),
        tool=tool.name,
        description=tool.description,
        schema={**tool.schema, "type": "object", "properties": tool.schema.get("properties") or {}},
        effect=dict(server.effects).get(tool.name) or server.effect or tool.annotated_effect,
    )


def _unchecked_patterns(offer: Offer) -> Iterator[str]:
    patterns = dict.fromkeys(pattern for _, pattern in schemas.patterns_in(offer.schema))
    unchecked = [pattern for pattern in patterns if not schemas.is_checked(pattern)]
    if unchecked:
        more = f" and {len(unchecked) - 1} more" if len(unchecked) > 1 else ""
        yield (
            f"tool {offer.tool!r}: the pattern {unchecked[0]!r:.100}{more} is not checked here, only by the server: "
            "it has lookarounds, back references or long repetitions, which could hold up a worker"
        )


def _unmatched(server: McpServer, names: list[str]) -> Iterator[str]:
    """Not an error: a server may drop a tool that no agent wants. But a typo in `except` lets a tool through."""
    for pattern in server.without:
        if not any(fnmatchcase(name, pattern) for name in names):
            yield f"except names {pattern!r}, and the server has no such tool; {_hint(pattern, names)}"
    for name, _effect in server.effects:
        if name not in names:
            yield f"effects names {name!r}, and the server has no such tool; {_hint(name, names)}"


def _hint(wrong: str, names: list[str]) -> str:
    close = get_close_matches(wrong, names, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"it has: {', '.join(sorted(names))}" if names else "it has none"


class SchemaArguments(Arguments):
    """Arguments checked against the schema of a server's tool, and passed on unchanged.

    `schema` None: the server's list is not known yet, and the server will find what is wrong.
    """

    def __init__(self, schema: dict[str, Any] | None, tool: str = "") -> None:
        self._tool = tool
        self.schema = schema or {"type": "object", "properties": {}}
        self._is_known = schema is not None

    def fit(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._is_known and (complaints := schemas.complaints(arguments, self.schema, self._tool)):
            raise InvalidArguments("\n".join(complaints))
        return {"arguments": arguments}


def fault_of_result(content: Any, schema: dict[str, Any], tool: str) -> str | None:
    """Why structured content does not fit the schema its server declares; None also where that cannot be checked."""
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    if bounds.fault_of_value(schema, most_bytes=bounds.SCHEMA_BYTES) is not None:
        log.warning("structured content is not checked: its schema is too large", tool=tool)
        return None
    try:
        checks = schemas.validator(schema, foreign=True)
        schemas.check_schema(schema, checks)
        worst = best_match(checks.iter_errors(content))
    except BadSchema as error:
        return f"its schema is none: {error}"
    except Unresolvable as error:
        return f"its schema has a reference that leads nowhere: {error.ref}"
    except (TooCostly, RecursionError):
        log.warning("structured content is not checked: it would take too long", tool=tool)
        return None
    except Exception as error:  # as in `schemas.complaints`
        log.warning("structured content is not checked: its schema cannot be followed", tool=tool, error=repr(error))
        return None
    return None if worst is None else str(worst)
