"""What a plugin may answer in each phase, and what the answers of several plugins amount to.

A verdict that could not be carried out cannot be built. The order in which plugins ran never matters. Where two
verdicts of the same weight exclude each other, the plugins decide: of gate verdicts and endings, the plugin whose id
comes first in the alphabet; of overrides and amended results, the plugin that is last in the declared order (`before`,
`after`, then the order in the agent's file). `order` is that one: `PluginSet.ids`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, TypeVar, get_args

from chordage.orchestrator.core.approvals import OnExpiry, Question, ResumeMode, Why, checked_question
from chordage.orchestrator.core.errors import ChordageError
from chordage.orchestrator.core.phases import Hook, Scope
from chordage.orchestrator.core.plugin_state import SetState
from chordage.orchestrator.core.reasons import Ending, Reason
from chordage.orchestrator.core.text import canonical, clean_json, must, must_be_json, one_of, text_of


@dataclass(frozen=True, kw_only=True, slots=True)
class AddContextMessage:
    """A message in the prompt, but not in the history.

    Repeated after more than `cooldown` steps, or at once when its text has changed; 0: in every prompt.
    """

    key: str
    text: str
    cooldown: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", text_of(self.key, "the key of a context message"))
        object.__setattr__(self, "text", text_of(self.text, f"the context message {self.key!r}"))
        must(self.cooldown >= 0, f"a cooldown is a number of steps, 0 or more; got {self.cooldown!r}")


@dataclass(frozen=True, slots=True)
class IncludeOnly:
    """Offer no other tools. Of the lists of several plugins, the tools that are in all of them."""

    tools: frozenset[str]

    def __init__(self, tools: Collection[str]) -> None:
        object.__setattr__(self, "tools", _names(tools))


@dataclass(frozen=True, slots=True)
class Exclude:
    tools: frozenset[str]

    def __init__(self, tools: Collection[str]) -> None:
        object.__setattr__(self, "tools", _names(tools))


@dataclass(frozen=True, slots=True)
class OverrideModel:
    model: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", text_of(self.model, "the name of the model"))


@dataclass(frozen=True, slots=True)
class OverrideParams:
    """For this one model call; other keys keep their value."""

    params: dict[str, Any]

    def __post_init__(self) -> None:
        must_be_json(self.params, "params")
        object.__setattr__(self, "params", clean_json(self.params))


@dataclass(frozen=True, slots=True)
class Terminate:
    """End the run: `stopped(code, detail)`, or behaviour requested. After inference, a stopped run first finishes the
    tools of the round.
    """

    ending: Ending

    def __post_init__(self) -> None:
        must(
            self.ending.reason in {Reason.STOPPED, Reason.BEHAVIOR_REQUESTED},
            f"a plugin ends a run as stopped or as behavior_requested, not as {self.ending.reason}",
        )


@dataclass(frozen=True, slots=True)
class Block:
    """The call does not run. The model reads the reason as its error result, and the run continues."""

    reason: str

    def __post_init__(self) -> None:
        is_blank = isinstance(self.reason, str) and not self.reason.strip()
        must(not is_blank, "a block needs a reason: it is all the model learns")
        object.__setattr__(self, "reason", text_of(self.reason, "the reason of a block"))


@dataclass(frozen=True, kw_only=True, slots=True)
class SuspendCall:
    """The call waits for a decision from outside, as with a tool's `Suspend`."""

    prompt: str
    schema: dict[str, Any] | None = None
    resume_mode: ResumeMode = ResumeMode.REPLAY
    expires_in: float | None = None  # seconds
    on_expiry: OnExpiry = OnExpiry.DENY
    default: Any = None

    def __post_init__(self) -> None:
        for name, value in checked_question(self.prompt, self.schema, self.expires_in, self.default).items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "resume_mode", one_of(ResumeMode, self.resume_mode, "resume_mode"))
        object.__setattr__(self, "on_expiry", one_of(OnExpiry, self.on_expiry, "on_expiry"))

    @property
    def question(self) -> Question:
        return Question(
            why=Why.GATE, prompt=self.prompt, schema=self.schema, resume_mode=self.resume_mode,
            expires_in=self.expires_in, on_expiry=self.on_expiry, default=self.default,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SupplyResult:
    """The call does not run; this is its result."""

    content: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "content", text_of(self.content, "the result", blank=True))


@dataclass(frozen=True, slots=True)
class AmendArguments:
    """The call runs with these arguments; others keep their value."""

    arguments: dict[str, Any]

    def __post_init__(self) -> None:
        must_be_json(self.arguments, "the arguments")
        object.__setattr__(self, "arguments", clean_json(self.arguments))


@dataclass(frozen=True, slots=True)
class AddMessage:
    """A message for the history, behind the results of the round."""

    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", text_of(self.text, "the message"))


@dataclass(frozen=True, slots=True)
class AmendResult:
    content: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "content", text_of(self.content, "the result", blank=True))


Verdict = (
    AddContextMessage | IncludeOnly | Exclude | OverrideModel | OverrideParams | Terminate | Block | SuspendCall
    | SupplyResult | AmendArguments | AddMessage | AmendResult | SetState
)  # fmt: skip
Given = tuple[str, Verdict]  # a plugin, and its verdict


def _names(tools: Collection[str]) -> frozenset[str]:
    must(not isinstance(tools, str), f"the tools are a list of names; got the text {tools!r}")
    return frozenset(tools)


class MisplacedVerdict(ChordageError):
    """A plugin's verdict has no meaning in the phase in which it was given."""


ALLOWED: Mapping[Hook, tuple[type[Verdict], ...]] = {
    Hook.RUN_START: (SetState,),
    Hook.STEP_START: (SetState,),
    Hook.BEFORE_INFERENCE: (
        AddContextMessage, IncludeOnly, Exclude, OverrideModel, OverrideParams, Terminate, SetState,
    ),
    Hook.AFTER_INFERENCE: (Terminate, SetState),
    Hook.STEP_END: (SetState,),
    Hook.BEFORE_TOOL_EXECUTE: (Block, SuspendCall, SupplyResult, AmendArguments, SetState),
    Hook.AFTER_TOOL_EXECUTE: (AddMessage, AmendResult, SetState),
    Hook.RUN_END: (SetState,),
}  # fmt: skip


def check_place(hook: Hook, plugin: str, verdict: Verdict) -> None:
    """Raises MisplacedVerdict for a verdict that has no meaning in the phase."""
    if not isinstance(verdict, ALLOWED[hook]):
        allowed = ", ".join(kind.__name__ for kind in ALLOWED[hook])
        raise MisplacedVerdict(
            f"plugin {plugin!r} gave {type(verdict).__name__} in {hook}, where it means nothing; {hook} takes {allowed}"
        )
    is_about_a_call = hook in {Hook.BEFORE_TOOL_EXECUTE, Hook.AFTER_TOOL_EXECUTE}
    if isinstance(verdict, SetState) and verdict.scope is Scope.CALL and not is_about_a_call:
        raise MisplacedVerdict(
            f"plugin {plugin!r} noted {verdict.key!r} for a call in {hook}, which is about no call; "
            "use scope run or thread"
        )


def check_places(hook: Hook, given: Iterable[Given]) -> None:
    for plugin, verdict in given:
        check_place(hook, plugin, verdict)


def is_verdict(value: object) -> bool:
    return isinstance(value, get_args(Verdict))


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """The last prompt of this run that had a message, and the digest of its text."""

    step: int
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    texts: tuple[str, ...]
    shown: dict[str, Shown]  # as it is once they are in a prompt


def due(given: Iterable[Given], shown: Mapping[str, Shown], step: int) -> Due:
    """The context messages for the next prompt. Of one plugin's messages with the same key, the last counts."""
    latest = {f"{plugin}/{verdict.key}": verdict for plugin, verdict in given if isinstance(verdict, AddContextMessage)}
    chosen = {name: message for name, message in latest.items() if _is_due(message, shown.get(name), step)}
    now = {name: Shown(step=step, digest=_digest(message.text)) for name, message in chosen.items()}
    return Due(texts=tuple(message.text for message in chosen.values()), shown={**shown, **now})


def _is_due(message: AddContextMessage, last: Shown | None, step: int) -> bool:
    if last is None or message.cooldown == 0 or last.digest != _digest(message.text):
        return True
    return step - last.step > message.cooldown


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


V = TypeVar("V", bound=Verdict)


class GateCode(StrEnum):
    """Why a call failed at the gate."""

    BLOCKED = "blocked"
    AMENDS_CONFLICT = "amends_conflict"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """The outcome for one call. `verdict` None: it may run. `amended` also applies to a suspended call."""

    verdict: Block | SuspendCall | SupplyResult | None = None
    plugin: str | None = None  # of the verdict; None also for a conflict of several
    code: GateCode | None = None  # of a Block
    amended: dict[str, Any] = field(default_factory=dict)

    def arguments(self, asked: dict[str, Any]) -> dict[str, Any]:
        return asked | self.amended


@dataclass(frozen=True, kw_only=True, slots=True)
class Inference:
    """The outcome for one model call. With an ending there is no call."""

    ending: Ending | None = None
    only: frozenset[str] | None = None  # None: no plugin gave a list
    excluded: frozenset[str] = frozenset()
    model: str | None = None  # None: the agent's
    params: dict[str, Any] = field(default_factory=dict)  # over those of the agent
    messages: tuple[Given, ...] = ()  # context messages with their plugins, before `due`

    def offers(self, tool: str) -> bool:
        return tool not in self.excluded and (self.only is None or tool in self.only)


@dataclass(frozen=True, kw_only=True, slots=True)
class Aftermath:
    """The outcome for one result."""

    content: str | None = None  # None: the tool's
    messages: tuple[str, ...] = ()


def gate(given: Iterable[Given]) -> Gate:
    """Block comes before SuspendCall, that before SupplyResult, and that before running."""
    given = list(given)
    check_places(Hook.BEFORE_TOOL_EXECUTE, given)
    amended, conflict = _amended(_of(AmendArguments, given))
    if blocks := _of(Block, given):
        return Gate(verdict=blocks[0][1], plugin=blocks[0][0], code=GateCode.BLOCKED)
    if conflict:
        return Gate(verdict=Block(conflict), code=GateCode.AMENDS_CONFLICT)
    if questions := _of(SuspendCall, given):
        return Gate(verdict=questions[0][1], plugin=questions[0][0], amended=amended)
    if results := _of(SupplyResult, given):
        return Gate(verdict=results[0][1], plugin=results[0][0], amended=amended)
    return Gate(amended=amended)


def inference(given: Iterable[Given], order: Sequence[str]) -> Inference:
    given = list(given)
    check_places(Hook.BEFORE_INFERENCE, given)
    lists = [verdict.tools for _, verdict in _of(IncludeOnly, given)]
    models = _ordered(_of(OverrideModel, given), order)
    return Inference(
        ending=_ending(given),
        only=frozenset.intersection(*lists) if lists else None,
        excluded=frozenset().union(*(verdict.tools for _, verdict in _of(Exclude, given))),
        model=models[-1].model if models else None,
        params={
            key: value
            for verdict in _ordered(_of(OverrideParams, given), order)
            for key, value in verdict.params.items()
        },
        messages=tuple(_of(AddContextMessage, given)),
    )


def after_inference(given: Iterable[Given]) -> Ending | None:
    """A stopped run finishes the tools of the round first; any other ending comes at once."""
    given = list(given)
    check_places(Hook.AFTER_INFERENCE, given)
    return _ending(given)


def aftermath(given: Iterable[Given], order: Sequence[str]) -> Aftermath:
    given = list(given)
    check_places(Hook.AFTER_TOOL_EXECUTE, given)
    contents = _ordered(_of(AmendResult, given), order)
    messages = _ordered(_of(AddMessage, given), order)
    return Aftermath(
        content=contents[-1].content if contents else None, messages=tuple(message.text for message in messages)
    )


def updates(given: Iterable[Given], order: Sequence[str]) -> tuple[SetState, ...]:
    """In the declared order of the plugins, for `plugin_state.noted`."""
    return tuple(_ordered(_of(SetState, given), order))


def _amended(amends: Sequence[tuple[str, AmendArguments]]) -> tuple[dict[str, Any], str | None]:
    """The combined arguments, and the conflict if there is one."""
    amended: dict[str, Any] = {}
    by: dict[str, str] = {}
    for plugin, verdict in amends:
        for key in sorted(verdict.arguments):
            value = verdict.arguments[key]
            if key in by and canonical(amended[key]) != canonical(value):
                return {}, f"plugins {by[key]} and {plugin} set the argument {key!r} to different values"
            amended[key] = value
            by.setdefault(key, plugin)
    return amended, None


def _ending(given: Iterable[Given]) -> Ending | None:
    endings = _of(Terminate, given)
    return endings[0][1].ending if endings else None


def _of(kind: type[V], given: Iterable[Given]) -> list[tuple[str, V]]:
    """Those of one kind, by plugin id and then by content, so that their order of arrival does not matter."""
    verdicts = [(plugin, verdict) for plugin, verdict in given if isinstance(verdict, kind)]
    return sorted(verdicts, key=lambda pair: (pair[0], _content(pair[1])))


def _content(verdict: Verdict) -> str:
    return canonical({key: sorted(v) if isinstance(v, frozenset) else v for key, v in asdict(verdict).items()})


def _ordered(verdicts: Sequence[tuple[str, V]], order: Sequence[str]) -> list[V]:
    place = {plugin: number for number, plugin in enumerate(order)}
    return [verdict for _, verdict in sorted(verdicts, key=lambda pair: place.get(pair[0], -1))]
