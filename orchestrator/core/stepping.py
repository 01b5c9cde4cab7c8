"""A turn that its consumer drives step by step: its state, the verbs that move it, and its settings.

The rule that decides how a held run continues is in `settling`.
"""

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
from chordage.orchestrator.core.audit import Actor
from chordage.orchestrator.core.errors import InvalidMessage, ModelFailed
from chordage.orchestrator.core.model import Fault, Said

PENDING = 2**62  # the id of an entry that is not recorded yet: it sorts behind all that are


class Control(StrEnum):
    """Who moves a run: the engine, or a consumer, one iteration at a time."""

    AUTO = "auto"
    STEP = "step"


class Drive(StrEnum):
    """What a stepped run does when it comes to be held."""

    STEP = "step"  # it waits for its consumer
    ONCE = "once"  # it makes one more request: `next` was sent before
    AUTO = "auto"  # it continues to its end: `run` was sent before


class CapPolicy(StrEnum):
    """What happens to the calls of the last reply that max_iterations allows."""

    RUN_TOOLS = "run_tools"
    SKIP_TOOLS = "skip_tools"


class OnHeld(StrEnum):
    """What happens to a held run that its consumer does not move in time."""

    PARK = "park"
    RESUME = "resume"
    CANCEL = "cancel"


class Standing(StrEnum):
    """The state of a stepped turn, as its consumer sees it."""

    QUEUED = "queued"
    READY = "ready"  # started, before its first request
    REQUESTING = "requesting"
    HELD = "held"  # the consumer has a reply, a plan or the results of a planned round
    TOOLING = "tooling"
    WAITING = "waiting"  # for a decision about a call
    PARKED = "parked"  # set aside by the consumer, or after hold_seconds
    FAILED = "failed"  # the model call failed; it can be tried again
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


_HELD = frozenset({Standing.READY, Standing.HELD, Standing.PARKED, Standing.FAILED})
_OPEN = frozenset(Standing) - {Standing.DONE}
_WITH_REPLY = frozenset({Standing.HELD, Standing.PARKED})

ALLOWED: Mapping[Verb, frozenset[Standing]] = {
    Verb.NEXT: _HELD | {Standing.QUEUED},
    Verb.MESSAGES: _HELD | {Standing.QUEUED},
    Verb.STEER: _OPEN,
    Verb.PARAMS: _HELD | {Standing.QUEUED},
    Verb.OPTIONS: _OPEN,
    Verb.COMPACT: _OPEN,
    Verb.PLAN: _HELD,
    Verb.TOOL_RESPONSE: _WITH_REPLY | {Standing.TOOLING},
    Verb.RETRY: _WITH_REPLY,
    Verb.TOOL_RESULTS: _WITH_REPLY | {Standing.TOOLING},  # for a waiting call: decide, or the inbox
    Verb.HOLD: _WITH_REPLY,
    Verb.DECIDE: _OPEN - {Standing.QUEUED},
    Verb.PARK: frozenset({Standing.READY, Standing.HELD, Standing.FAILED}),
    Verb.RUN: _OPEN,
    Verb.CANCEL: _OPEN,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTerms:
    """Settings that come with the turn. `max_iterations` None: no limit."""

    max_iterations: int | None = None
    cap_policy: CapPolicy = CapPolicy.SKIP_TOOLS
    hold_seconds: float | None = None  # None: held without a limit
    on_held: OnHeld = OnHeld.PARK
    params: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stepped:
    """The row of a stepped turn. `rev` grows with every change of it."""

    turn_id: str
    rev: int
    drive: Drive
    going: bool  # it is on its way to a request; False: it is held at the next step
    mutated: bool  # the consumer changed the history while a reply was held
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
    given: list[dict[str, Any]]  # messages that are to become history
    replaces: bool  # ... in place of the whole history
    steers: list[str]  # texts that come behind the results
    verdicts: dict[str, Any]  # about calls that have not been opened yet, by the model's id
    withheld: list[str]  # tools that plugins kept from the model when it replied
    sent_hash: str | None
    error: dict[str, Any] | None
    compacts: int | None  # the request for a summary that its consumer made, as the thread counts them
    plan: dict[str, Any] | None  # the consumer's decision, in place of the planner's


def digest(said: Sequence[Said], params: Mapping[str, Any]) -> str:
    """Of a request to the model. Equal digests: the same in everything that the consumer can change."""
    return _sha256([[[type(message).__name__, asdict(message)] for message in said], dict(params)])


def _sha256(value: list[Any]) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


_OPTIONS: Mapping[str, tuple[type, ...]] = {"model_timeout": (int, float), "model_retries": (int,), "stream": (bool,)}
# Least and most: a consumer must not hold a worker for days, or retry without an end.
_BETWEEN: Mapping[str, tuple[float, float]] = {"model_timeout": (0.001, 3600.0), "model_retries": (0, 10)}
_PARAMS: Mapping[str, tuple[type, ...]] = {"model": (str,), "instructions": (str,), "tools": (list,)}
_MODEL_KEYS = frozenset({"model", "models"})  # these name a model, also inside the table of a wire format

# The arguments of a verb: those it needs, and those it takes as well. A verb that is not here has none.
_ARGUMENTS: Mapping[Verb, tuple[set[str], set[str]]] = {
    Verb.MESSAGES: ({"messages"}, set()),
    Verb.STEER: ({"text"}, set()),
    Verb.PARAMS: ({"params"}, {"messages"}),
    Verb.OPTIONS: ({"options"}, set()),
    Verb.PLAN: ({"plan"}, set()),
    Verb.RETRY: ({"ask_ids"}, {"force"}),
    Verb.TOOL_RESULTS: ({"results"}, set()),
    Verb.HOLD: ({"ask_ids"}, set()),
    Verb.DECIDE: ({"ask_id", "allow"}, {"reason", "payload"}),
    Verb.CANCEL: (set(), {"reason"}),
}
_KINDS: Mapping[str, tuple[type, ...]] = {
    "messages": (list,), "text": (str,), "params": (dict,), "options": (dict,), "ask_ids": (list,), "force": (bool,),
    "results": (list,), "ask_id": (str,), "allow": (bool,), "reason": (str, type(None)),
    "plan": (dict, str), "payload": (dict, list, str, int, float, bool, type(None)),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRequest:
    """`target`: a turn or its run. `if_rev`: refused at any other revision. `key`: repeated, it does nothing.
    `space`: of a caller, who finds only the turns in it. `by`: who sends it, where that is known.
    """

    target: str
    verb: Verb
    args: Mapping[str, Any] = field(default_factory=dict)
    if_rev: int | None = None
    key: str | None = None
    space: str | None = None
    by: Actor | None = None

    @property
    def hash(self) -> str:
        return _sha256([self.verb.value, dict(self.args), self.if_rev])


def check(request: StepRequest, limit: int) -> None:
    """The rules that need no look at the turn. Raises InvalidMessage."""
    needed, taken = _ARGUMENTS.get(request.verb, (set(), set()))
    for name in sorted(needed - request.args.keys()):
        raise InvalidMessage(f"{request.verb.value} needs {name}: give it", field=name)
    for name in sorted(request.args.keys() - needed - taken):
        raise InvalidMessage(f"{request.verb.value} takes no {name}: leave it out", field=name)
    for name, value in request.args.items():
        _check_kind(name, value, _KINDS[name])
    _check_storable(request.args, limit)
    if request.key is not None and not 1 <= len(request.key) <= text.NAME_MAX:
        raise InvalidMessage(f"give a key of 1 to {text.NAME_MAX} characters", field="key")
    for name, kinds in (("params", _PARAMS), ("options", _OPTIONS)):
        _check_settings(name, request.args.get(name) or {}, kinds)


def check_terms(terms: StepTerms, agent: AgentSpec, limit: int) -> None:
    """The settings that come with the turn. Raises InvalidMessage."""
    _check_storable({"params": terms.params, "options": terms.options}, limit)
    _check_settings("params", terms.params, _PARAMS)
    check_model(agent, terms.params)
    _check_settings("options", terms.options, _OPTIONS)


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
    """Only known options are accepted; an unknown parameter is passed to the provider."""
    for key, value in given.items():
        if name == "options" and key not in kinds:
            raise InvalidMessage(f"there is no option {key!r}; there are: {', '.join(kinds)}", field=f"{name}.{key}")
        if value is not None and key in kinds:
            _check_kind(f"{name}.{key}", value, kinds[key])
        if value is not None and name == "options" and key in _BETWEEN:
            least, most = _BETWEEN[key]
            if not least <= value <= most:
                problem = f"options.{key} is {value!r:.40}: give {least:g} to {most:g}"
                raise InvalidMessage(problem, field=f"options.{key}")
        if name == "params" and (hidden := _hidden_models(key, value)):
            problem = f"name a model as params.model; {hidden} would put another in its place"
            raise InvalidMessage(problem, field=hidden)
        if key == "messages":
            raise InvalidMessage("give messages beside params, not in them", field="params.messages")


def _hidden_models(key: str, value: Any) -> str | None:
    if key == "models":
        return "params.models"
    inner = sorted(_MODEL_KEYS & value.keys()) if isinstance(value, dict) else []
    return f"params.{key}.{inner[0]}" if inner else None


def check_model(agent: AgentSpec, params: Mapping[str, Any]) -> None:
    """A consumer chooses among the models that the agent's file names: another may cost more, or be code to run."""
    model = params.get("model")
    if model is not None and model not in agent.named_models:
        known = ", ".join(agent.named_models)
        problem = f"agent {agent.name!r} names no model {model!r}; choose from {known}, or add it to selectable_models"
        raise InvalidMessage(problem, field="params.model")


def merged(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A name with a value is set, one with null is removed."""
    return {name: value for name, value in {**before, **given}.items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestTerms:
    """The consumer's settings for this request. `sent`: its digest."""

    row: Stepped
    sent: str

    def tune(self, agent: AgentSpec) -> AgentSpec:
        """The agent for this request. Raises ModelFailed where its file no longer names the chosen model."""
        model = self.row.params.get("model", agent.model)
        if model not in agent.named_models:
            problem = f"agent {agent.name!r} no longer names model {model!r}: choose another with the verb params"
            raise ModelFailed(problem, fault=Fault.REJECTED, attempts=())
        return tuned(agent, self.row)

    def offers(self, tool: str) -> bool:
        return tool in self.row.params.get("tools", [tool])

    @property
    def begins(self) -> bool:
        return self.row.iteration == 0

    @property
    def compacts(self) -> int:
        """The last request for a summary that its consumer made."""
        return self.row.compacts or 0


def tuned(agent: AgentSpec, row: Stepped) -> AgentSpec:
    """The agent with the settings of this turn's consumer."""
    own = {name: row.params[name] for name in ("model", "instructions") if name in row.params}
    sent = {name: value for name, value in row.params.items() if name not in _PARAMS}
    return replace(agent, **own, **row.options, params={**agent.params, **sent})
