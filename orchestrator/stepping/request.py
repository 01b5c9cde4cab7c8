"""A verb as it comes in, and what its arguments have to be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chordage.orchestrator.core import storable
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.stepping import StepTerms, Verb

OPTIONS: Mapping[str, tuple[type, ...]] = {"model_timeout": (int, float), "model_retries": (int,), "stream": (bool,)}
# Least and most: a consumer chooses how patiently its model is asked; it neither holds a worker for days nor asks for
# ever.
BETWEEN: Mapping[str, tuple[float, float]] = {"model_timeout": (0.001, 3600.0), "model_retries": (0, 10)}
# What names a model, also where it stands in a table of its own for one wire format.
MODEL_KEYS = frozenset({"model", "models"})
PARAMS: Mapping[str, tuple[type, ...]] = {"model": (str,), "instructions": (str,), "tools": (list,)}

# The arguments of each verb: those it needs, and those it takes.
ARGUMENTS: Mapping[Verb, tuple[frozenset[str], frozenset[str]]] = {
    Verb.NEXT: (frozenset(), frozenset()),
    Verb.MESSAGES: (frozenset({"messages"}), frozenset()),
    Verb.STEER: (frozenset({"text"}), frozenset()),
    Verb.PARAMS: (frozenset({"params"}), frozenset({"messages"})),
    Verb.OPTIONS: (frozenset({"options"}), frozenset()),
    Verb.COMPACT: (frozenset(), frozenset()),
    Verb.PLAN: (frozenset({"plan"}), frozenset()),
    Verb.TOOL_RESPONSE: (frozenset(), frozenset()),
    Verb.RETRY: (frozenset({"ask_ids"}), frozenset({"force"})),
    Verb.TOOL_RESULTS: (frozenset({"results"}), frozenset()),
    Verb.HOLD: (frozenset({"ask_ids"}), frozenset()),
    Verb.DECIDE: (frozenset({"ask_id", "allow"}), frozenset({"reason", "payload"})),
    Verb.PARK: (frozenset(), frozenset()),
    Verb.RUN: (frozenset(), frozenset()),
    Verb.CANCEL: (frozenset(), frozenset({"reason"})),
}
KINDS: Mapping[str, tuple[type, ...]] = {
    "messages": (list,), "text": (str,), "params": (dict,), "options": (dict,), "ask_ids": (list,), "force": (bool,),
    "results": (list,), "ask_id": (str,), "allow": (bool,), "reason": (str, type(None)),
    "plan": (dict, str), "payload": (dict, list, str, int, float, bool, type(None)),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRequest:
    """`target`: a turn or its run. `if_rev`: only while it is at this revision. `key`: the same again does nothing.
    `space`: of a caller, outside of which there is no turn for it.
    """

    target: str
    verb: Verb
    args: Mapping[str, Any] = field(default_factory=dict)
    if_rev: int | None = None
    key: str | None = None
    space: str | None = None

    @property
    def hash(self) -> str:
        written = json.dumps([self.verb.value, dict(self.args), self.if_rev], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()


def check(request: StepRequest, limit: int) -> None:
    """Whatever can be said without looking at the turn."""
    needed, taken = ARGUMENTS[request.verb]
    for name in sorted(needed - request.args.keys()):
        raise InvalidMessage(f"{request.verb.value} needs {name}: give it", field=name)
    for name in sorted(request.args.keys() - needed - taken):
        raise InvalidMessage(f"{request.verb.value} takes no {name}: leave it out", field=name)
    for name, value in request.args.items():
        _check_kind(name, value, KINDS[name])
    _check_storable(request.args, limit)
    if request.key is not None and not 1 <= len(request.key) <= storable.NAME_MAX:
        raise InvalidMessage(f"give a key of 1 to {storable.NAME_MAX} characters", field="key")
    for name, kinds in (("params", PARAMS), ("options", OPTIONS)):
        _check_settings(name, request.args.get(name) or {}, kinds)


def check_terms(terms: StepTerms, agent: AgentSpec, limit: int) -> None:
    """What is laid down with the turn."""
    _check_storable({"params": terms.params, "options": terms.options}, limit)
    _check_settings("params", terms.params, PARAMS)
    check_model(agent, terms.params)
    _check_settings("options", terms.options, OPTIONS)


def _check_kind(name: str, value: object, kinds: tuple[type, ...]) -> None:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
        raise InvalidMessage(f"{name} is a {wanted}; got {value!r:.80}", field=name)
    if value == "" or (isinstance(value, str) and name == "text" and not value.strip()):
        raise InvalidMessage(f"{name} is blank: say something", field=name)


def _check_storable(given: Mapping[str, Any], limit: int) -> None:
    for name, value in given.items():
        try:
            size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogatepass"))
        except (TypeError, ValueError) as error:
            raise InvalidMessage(f"give {name} as JSON: {error}", field=name) from error
        if size > limit:
            raise InvalidMessage(f"{name} has {size} bytes, the limit is {limit}", field=name, too_large=True)
        if storable.json(value) != value:
            raise InvalidMessage(f"remove from {name} what is no text: a NUL, or half a surrogate pair", field=name)


def _check_settings(name: str, given: Mapping[str, Any], kinds: Mapping[str, tuple[type, ...]]) -> None:
    """Of options every one is known; a parameter that is not goes to the provider as it is."""
    for key, value in given.items():
        if name == "options" and key not in kinds:
            raise InvalidMessage(f"there is no option {key!r}; there are: {', '.join(kinds)}", field=f"{name}.{key}")
        if value is not None and key in kinds:
            _check_kind(f"{name}.{key}", value, kinds[key])
        if value is not None and name == "options" and key in BETWEEN:
            _check_between(f"{name}.{key}", value, *BETWEEN[key])
        if name == "params" and (hidden := _hidden_models(key, value)):
            told = f"name a model as params.model; {hidden} would put another in its place"
            raise InvalidMessage(told, field=hidden)
        if key == "messages":
            raise InvalidMessage("messages stand beside params, not in them", field="params.messages")


def _check_between(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidMessage(f"{name} is {value!r:.40}: give {least:g} to {most:g}", field=name)


def _hidden_models(key: str, value: Any) -> str | None:
    if key == "models":
        return "params.models"
    inner = sorted(MODEL_KEYS & value.keys()) if isinstance(value, dict) else []
    return f"params.{key}.{inner[0]}" if inner else None


def check_model(agent: AgentSpec, params: Mapping[str, Any]) -> None:
    """A consumer chooses among what the agent's owner has named: another model may cost more, or be code to run."""
    model = params.get("model")
    if model is not None and model not in agent.named_models:
        known = ", ".join(agent.named_models)
        told = f"agent {agent.name!r} names no model {model!r}; choose from {known}, or add it to its selectable_models"
        raise InvalidMessage(told, field="params.model")


def merged(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What is not named stays, what is null goes."""
    return {name: value for name, value in {**before, **given}.items() if value is not None}
