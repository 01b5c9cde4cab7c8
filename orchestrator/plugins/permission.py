r"""Which calls may run: rules that allow, ask or deny. Deny beats allow, allow beats ask, and no rule is the default.

A tool that can never run is not shown to the model. A call that a person has approved runs, unless a rule denies it:
the decision may have edited its arguments. With `{"remember": true}` in the answer, the tool, with the argument globs
of the rule that asked, is allowed for the rest of the thread.

A rule is `tool`, or `tool(argument=glob, other=glob)`. Tool and globs are shell patterns: * is any text, ? one
character, [ab] one of these. A glob with a comma, a bracket or a blank at its edge is written in double quotes, in
which \" is a quote and \\ a backslash. A text is compared as it is, anything else as JSON. A rule fits a call only when
every argument it names is there and fits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from chordage.orchestrator.core.approvals import OnExpiry
from chordage.orchestrator.core.limits import LONGEST
from chordage.orchestrator.core.phases import BeforeInference, BeforeToolExecute, Moment, Scope, ShownCall
from chordage.orchestrator.core.plugin_state import Merge, SetState
from chordage.orchestrator.core.verdicts import Block, Exclude, SuspendCall, Verdict
from chordage.orchestrator.plugins.base import OptionRefused, Plugin

REMEMBERED = "permission.allow"
PROMPT_MAX = 2_000  # characters of arguments in a question

SCHEMA = {
    "type": ["boolean", "object", "null"],  # a plain yes, or one to remember
    "not": {"const": False},  # to say no is to deny
    "properties": {"remember": {"type": "boolean", "description": "allow this for the rest of the thread"}},
    "additionalProperties": False,  # an answer to another question is refused
}

_RULE = re.compile(r"\s*(?P<tool>[^\s()=,\"]+)\s*(?:\((?P<conditions>.*)\))?\s*", re.DOTALL)
_CONDITION = re.compile(
    r'\s*(?P<name>[^\W\d]\w*)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^",()\s](?:[^",()]*[^",()\s])?))\s*(?:,|$)',
    re.DOTALL,
)
_SPECIAL = re.compile(r"([*?[])")


class Default(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Permission(Plugin):
    id = "permission"

    def __init__(
        self,
        *,
        allow: Sequence[str] = (),
        ask: Sequence[str] = (),
        deny: Sequence[str] = (),
        default: str = Default.ASK,
        expires_in: float | None = None,
        on_expiry: str = OnExpiry.DENY,
    ) -> None:
        self._allow = _rules("allow", allow)
        self._ask = _rules("ask", ask)
        self._deny = _rules("deny", deny)
        if default not in set(Default):
            raise OptionRefused("default", f"must be one of {', '.join(Default)}; got {default!r}")
        self._default = Default(default)
        self._expires_in = _seconds(expires_in)
        self._on_expiry = _on_expiry(on_expiry)

    def before_inference(self, context: BeforeInference, /) -> Iterable[Verdict]:
        hidden = [tool for tool in context.tools if self._never_runs(tool, _remembered(context))]
        if hidden:
            yield Exclude(hidden)

    def before_tool_execute(self, context: BeforeToolExecute, /) -> Iterable[Verdict]:
        call = context.call
        if rule := _fitting(self._deny, call):
            yield Block(f"Permission denied: the rule {str(rule)!r} does not allow this call. Do not try it again.")
        elif call.resumed:
            if _is_to_remember(call.resumed.payload):
                yield self._memory_of(call)
        elif _fitting(self._allow, call) or _fitting(_remembered(context), call):
            return
        elif self._default is Default.ASK or _fitting(self._ask, call):
            yield self._question(call)
        elif self._default is Default.DENY:
            yield Block(f"Permission denied: no rule allows this call of {call.tool}.")

    def _never_runs(self, tool: str, remembered: Sequence[PermissionRule]) -> bool:
        if any(rule.names(tool) and rule.is_unconditional for rule in self._deny):
            return True
        some = [*self._allow, *self._ask, *remembered]
        return self._default is Default.DENY and not any(rule.names(tool) for rule in some)

    def always_asks(self, tool: str) -> bool:
        """Whatever the arguments of the call are."""
        if any(rule.names(tool) for rule in [*self._allow, *self._deny]):
            return False
        return self._default is Default.ASK or any(rule.names(tool) and rule.is_unconditional for rule in self._ask)

    def _memory_of(self, call: ShownCall) -> SetState:
        asked = _fitting(self._ask, call) or PermissionRule(call.tool)
        return SetState(scope=Scope.THREAD, key=REMEMBERED, value=[str(asked.for_tool(call.tool))], merge=Merge.UNION)

    def _question(self, call: ShownCall) -> SuspendCall:
        shown = json.dumps(call.arguments, ensure_ascii=False, indent=2)
        if len(shown) > PROMPT_MAX:
            shown = f"{shown[:PROMPT_MAX]} … ({len(shown) - PROMPT_MAX} more characters)"
        return SuspendCall(
            prompt=f"May {call.tool} run with these arguments?\n{shown}",
            schema=SCHEMA,
            expires_in=self._expires_in,
            on_expiry=self._on_expiry,
        )


def _rules(option: str, texts: Sequence[str]) -> tuple[PermissionRule, ...]:
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise OptionRefused(option, f"must be a list of rules, each a text; got {texts!r}")
    try:
        return tuple(parsed_rule(text) for text in texts)
    except ValueError as error:
        raise OptionRefused(option, str(error)) from error


def _seconds(given: float | None) -> float | None:
    if given is None or (isinstance(given, int | float) and not isinstance(given, bool) and 0 < given <= LONGEST):
        return given
    problem = f"must be a number of seconds, more than 0 and at most {LONGEST:.0f}, or left out; got {given!r}"
    raise OptionRefused("expires_in", problem)


def _on_expiry(given: str) -> OnExpiry:
    """Not `default`: it would be a permission that no person has given."""
    possible = [member for member in OnExpiry if member is not OnExpiry.DEFAULT]
    if given not in possible:
        raise OptionRefused("on_expiry", f"must be one of {', '.join(possible)}; got {given!r}")
    return OnExpiry(given)


def _fitting(rules: Sequence[PermissionRule], call: ShownCall) -> PermissionRule | None:
    return next((rule for rule in rules if rule.fits(call.tool, call.arguments)), None)


def _remembered(context: Moment) -> list[PermissionRule]:
    return [parsed_rule(text) for text in context.noted(Scope.THREAD, REMEMBERED, [])]


def _is_to_remember(payload: Any) -> bool:
    return isinstance(payload, dict) and payload.get("remember") is True


@dataclass(frozen=True, slots=True)
class PermissionRule:
    tool: str
    conditions: tuple[tuple[str, str], ...] = ()

    @property
    def is_unconditional(self) -> bool:
        return not self.conditions

    def names(self, tool: str) -> bool:
        return fnmatchcase(tool, self.tool)

    def fits(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        return self.names(tool) and all(
            name in arguments and fnmatchcase(_as_text(arguments[name]), glob) for name, glob in self.conditions
        )

    def for_tool(self, tool: str) -> PermissionRule:
        """The same for this one tool, whatever pattern the rule has for it."""
        return PermissionRule(_SPECIAL.sub(r"[\1]", tool), self.conditions)

    def __str__(self) -> str:
        conditions = ", ".join(f"{name}={_quoted(glob)}" for name, glob in self.conditions)
        return f"{self.tool}({conditions})" if conditions else self.tool


def parsed_rule(text: str) -> PermissionRule:
    """Raises ValueError, which shows what a rule looks like."""
    match = _RULE.fullmatch(text)
    if match is None:
        raise ValueError(_wrong(text))
    if match["conditions"] is None:
        return PermissionRule(match["tool"])
    return PermissionRule(match["tool"], _conditions(match["conditions"], text))


def _conditions(inside: str, text: str) -> tuple[tuple[str, str], ...]:
    conditions: list[tuple[str, str]] = []
    at = 0
    while at < len(inside):
        match = _CONDITION.match(inside, at)
        if match is None:
            raise ValueError(_wrong(text))
        conditions.append((match["name"], _unquoted(match["quoted"]) if match["bare"] is None else match["bare"]))
        at = match.end()
    if not conditions:
        raise ValueError(_wrong(text))
    return tuple(conditions)


def _unquoted(quoted: str) -> str:
    return re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _wrong(text: str) -> str:
    return f"{text!r} is no rule; write `tool` or `tool(argument=glob, ...)`, with quotes around a glob that needs them"
