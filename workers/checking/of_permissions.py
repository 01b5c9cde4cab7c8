"""Permission rules that speak of no tool of their agent: a misspelt `deny` allows what it was to keep."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.plugins.permission import PermissionRule, parsed_rule

LISTS = ("allow", "ask", "deny")
Schemas = Mapping[str, Mapping[str, Any]]  # of the arguments of each tool, by its name


def faults(agent: AgentSpec, tools: Schemas, unlisted: Collection[str]) -> Iterator[tuple[str, str]]:
    """Each rule with what is wrong with it. `unlisted`: servers of which nobody has asked yet what they offer."""
    for options in (use.options for use in agent.plugins if use.use == "permission"):
        for name in LISTS:
            for text in _texts(options.get(name)):
                if (why := _wrong(parsed_rule(text), tools, unlisted)) is not None:
                    yield text, f"permission.{name}: rule {text!r}: {why}"


def _texts(given: object) -> Sequence[str]:
    return given if isinstance(given, list | tuple) else ()


def _wrong(rule: PermissionRule, tools: Schemas, unlisted: Collection[str]) -> str | None:
    meant = [name for name in tools if rule.names(name)]
    if not meant:
        is_pattern = any(sign in rule.tool for sign in "*?[")
        if any(is_pattern or fnmatchcase(rule.tool, f"{server}_*") for server in unlisted):
            return None
        return f"the agent has no such tool; {_hint(rule.tool, tools)}"
    for name, _glob in rule.conditions:
        known = sorted({argument for tool in meant for argument in tools[tool].get("properties", {})})
        if name not in known and not any(tools[tool].get("additionalProperties", False) for tool in meant):
            return f"{', '.join(meant)} takes no argument {name!r}; {_hint(name, known)}"
    return None


def _hint(wrong: str, known: Collection[str]) -> str:
    close = get_close_matches(wrong, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(sorted(known)) or 'none'}"
