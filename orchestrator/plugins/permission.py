"""Which calls may run: rules that allow, ask or deny. Deny beats allow, allow beats ask, and no rule is the default.

A tool that can never run is not shown to the model. A call that goes on because somebody has decided runs, unless a
rule denies it: a decision may have edited its arguments. With `{"remember": true}` in the answer, what was asked about
is allowed for the rest of the thread: the tool, with the arguments' globs of the rule that asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core.approvals import OnExpiry
from chordage.orchestrator.core.phases import BeforeInference, BeforeToolExecute, Moment, Scope, ShownCall
from chordage.orchestrator.core.plugin_state import Merge, SetState
from chordage.orchestrator.core.verdicts import Block, Exclude, SuspendCall, Verdict
from chordage.orchestrator.plugins.base import OptionRefused, Plugin
from chordage.orchestrator.plugins.rules import Rule, parsed

REMEMBERED = "permission.allow"
PROMPT_MAX = 2_000  # characters of arguments shown to whoever decides

SCHEMA = {
    "type": ["object", "boolean", "null"],  # a plain yes, or one that is to be remembered
    "not": {"const": False},  # to say no is to deny
    "properties": {"remember": {"type": "boolean", "description": "allow this for the rest of the thread"}},
    "additionalProperties": False,  # whoever answers another question has it refused
}


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
            if _wants_to_be_remembered(call.resumed.payload):
                yield self._memory_of(call)
        elif _fitting(self._allow, call) or _fitting(_remembered(context), call):
            return
        elif self._default is Default.ASK or _fitting(self._ask, call):
            yield self._question(call)
        elif self._default is Default.DENY:
            yield Block(f"Permission denied: no rule allows this call of {call.tool}.")

    def _never_runs(self, tool: str, remembered: Sequence[Rule]) -> bool:
        if any(rule.names(tool) and rule.is_unconditional for rule in self._deny):
            return True
        some = [*self._allow, *self._ask, *remembered]
        return self._default is Default.DENY and not any(rule.names(tool) for rule in some)

    def _memory_of(self, call: ShownCall) -> SetState:
        asked = _fitting(self._ask, call) or Rule(call.tool)
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


def _rules(option: str, texts: Sequence[str]) -> tuple[Rule, ...]:
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise OptionRefused(option, f"must be a list of rules, each a text; got {texts!r}")
    try:
        return tuple(parsed(text) for text in texts)
    except ValueError as error:
        raise OptionRefused(option, str(error)) from error


def _seconds(given: float | None) -> float | None:
    if given is None or (isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < float("inf")):
        return given
    raise OptionRefused("expires_in", f"must be a number of seconds, more than 0, or left out; got {given!r}")


def _on_expiry(given: str) -> OnExpiry:
    """A default answer would be a permission that nobody has given."""
    possible = [one for one in OnExpiry if one is not OnExpiry.DEFAULT]
    if given not in possible:
        raise OptionRefused("on_expiry", f"must be one of {', '.join(possible)}; got {given!r}")
    return OnExpiry(given)


def _fitting(rules: Sequence[Rule], call: ShownCall) -> Rule | None:
    return next((rule for rule in rules if rule.fits(call.tool, call.arguments)), None)


def _remembered(context: Moment) -> list[Rule]:
    return [parsed(text) for text in context.noted(Scope.THREAD, REMEMBERED, [])]


def _wants_to_be_remembered(payload: Any) -> bool:
    return isinstance(payload, dict) and payload.get("remember") is True
