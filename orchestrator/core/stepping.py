"""A run that its consumer drives: how it stands, what may be done with it there, and what was laid down for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core import text
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import InvalidMessage, ModelFailed
from chordage.orchestrator.core.model import Fault, Said

PENDING = 2**62  # in place of the id of an entry that is not recorded yet: it comes after all that are


class Control(StrEnum):
    """Who moves a run on: the engine, or a consumer, one iteration at a time."""

    AUTO = "auto"
    STEP = "step"


class Drive(StrEnum):
    """What happens when a stepped run comes to be held."""

    STEP = "step"  # it waits for its consumer
    ONCE = "once"  # somebody has said `next` already
    AUTO = "auto"  # somebody has said `run`: it goes on by itself to its end


class CapPolicy(StrEnum):
    """What becomes of the calls of the last reply that max_iterations allows."""

    RUN_TOOLS = "run_tools"
    SKIP_TOOLS = "skip_tools"


class OnHeld(StrEnum):
    """What happens when nobody moved a held run on in time."""

    PARK = "park"
    RESUME = "resume"
    CANCEL = "cancel"


class Standing(StrEnum):
    """Where a stepped turn stands, as its consumer sees it."""

    QUEUED = "queued"
    READY = "ready"  # started, and nothing was asked yet
    REQUESTING = "requesting"
    HELD = "held"  # a reply, a plan or what came of a planned round lies with the consumer
    TOOLING = "tooling"
    WAITING = "waiting"  # for a decision about a call
    PARKED = "parked"  # the consumer broke off
    FAILED = "failed"  # the model could not be asked; it can be tried again
    DONE = "done"


class Verb(StrEnum):
    """What a consumer may do. The values are a wire format."""

    NEXT = "next"
    MESSAGES = "messages"
    STEER = "steer"
    PARAMS = "params"
    OPTIONS = "options"
    COMPACT = "compact"
    PLAN = "plan"
    TOOL_RESPONSE = "tool_response"
    RETRY = "retry"
    TOOL_RESULTS = "tool_results"
    HOLD = "hold"
    DECIDE = "decide"
    PARK = "park"
    RUN = "run"
    CANCEL = "cancel"


_AT_REST = frozenset({Standing.READY, Standing.HELD, Standing.PARKED, Standing.FAILED})
_OPEN = frozenset(Standing) - {Standing.DONE}
_WITH_REPLY = frozenset({Standing.HELD, Standing.PARKED})

ALLOWED: Mapping[Verb, frozenset[Standing]] = {
    Verb.NEXT: _AT_REST | {Standing.QUEUED},
    Verb.MESSAGES: _AT_REST | {Standing.QUEUED},
    Verb.STEER: _OPEN,
    Verb.PARAMS: _AT_REST | {Standing.QUEUED},
    Verb.OPTIONS: _OPEN,
    Verb.COMPACT: _OPEN,
    Verb.PLAN: _AT_REST,
    Verb.TOOL_RESPONSE: _WITH_REPLY | {Standing.TOOLING},
    Verb.RETRY: _WITH_REPLY,
    Verb.TOOL_RESULTS: _WITH_REPLY | {Standing.TOOLING},  # a call that waits is answered: decide, or the inbox
    Verb.HOLD: _WITH_REPLY,
    Verb.DECIDE: _OPEN - {Standing.QUEUED},
    Verb.PARK: frozenset({Standing.READY, Standing.HELD, Standing.FAILED}),
    Verb.RUN: _OPEN,
    Verb.CANCEL: _OPEN,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTerms:
    """What is laid down with the turn. `max_iterations` None: no limit."""

    max_iterations: int | None = None
    cap_policy: CapPolicy = CapPolicy.SKIP_TOOLS
    hold_seconds: float | None = None  # None: it is held until somebody comes
    on_held: OnHeld = OnHeld.PARK
    params: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stepped:
    """The row of a stepped turn. `rev` grows with every change of it."""

    turn_id: str
    rev: int
    drive: Drive
    going: bool  # it is on its way to a request; else it is held at the next crossing
    mutated: bool  # the consumer has touched the history while a reply was held
    parked: bool
    reply_step: int | None  # of the reply that is held
    iteration: int  # requests that brought a reply
    max_iterations: int | None
    cap_policy: CapPolicy
    hold_seconds: float | None
    on_held: OnHeld
    held_until: datetime | None
    params: dict[str, Any]
    options: dict[str, Any]
    given: list[dict[str, Any]]  # messages that wait to become history
    replaces: bool  # ... in place of all that was said before
    steers: list[str]  # what is said behind the results
    verdicts: dict[str, Any]  # about calls that have not been opened yet, by the model's id
    withheld: list[str]  # tools that plugins kept from the model when it replied
    sent_hash: str | None
    error: dict[str, Any] | None
    compacts: int | None  # the request for a summary that is its consumer's, as the thread counts them
    plan: dict[str, Any] | None  # a decision of its consumer's, in place of the planner's


def digest(said: Sequence[Said], params: Mapping[str, Any]) -> str:
    """Of what the model is asked. Two requests with the same digest differ in nothing that the consumer can change."""
    import hashlib  # loads a library of its own: `import chordage` alone must not pay for it

    told = [[type(one).__name__, asdict(one)] for one in said]
    written = json.dumps([told, dict(params)], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()


# A verb as it comes in, and what its arguments have to be.

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
    if request.key is not None and not 1 <= len(request.key) <= text.NAME_MAX:
        raise InvalidMessage(f"give a key of 1 to {text.NAME_MAX} characters", field="key")
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
        if text.clean_json(value) != value:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestTerms:
    """What the consumer wants of this request. `sent`: the digest of what is asked."""

    row: Stepped
    sent: str

    def tune(self, agent: AgentSpec) -> AgentSpec:
        """For the request. A model that the agent's file has named, and no longer does, is not asked."""
        model = self.row.params.get("model", agent.model)
        if model not in agent.named_models:
            why = f"agent {agent.name!r} no longer names model {model!r}: choose another with the verb params"
            raise ModelFailed(why, fault=Fault.REJECTED, attempts=())
        return tuned(agent, self.row)

    def offers(self, tool: str) -> bool:
        return tool in self.row.params.get("tools", [tool])

    @property
    def begins(self) -> bool:
        return self.row.iteration == 0

    @property
    def compacts(self) -> int:
        """Up to which request for a summary its consumer has asked."""
        return self.row.compacts or 0


OF_AGENT = {"model": "model", "instructions": "instructions"}
NOT_SENT = {*OF_AGENT, "tools"}


def tuned(agent: AgentSpec, row: Stepped) -> AgentSpec:
    """The agent as this turn's consumer has set it."""
    changed: dict[str, Any] = {field: row.params[name] for name, field in OF_AGENT.items() if name in row.params}
    sent = {name: value for name, value in row.params.items() if name not in NOT_SENT}
    return replace(agent, **changed, **row.options, params={**agent.params, **sent})
