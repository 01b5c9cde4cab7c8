"""A model that says what a test wants, and keeps what it was asked.

Replies are written as in a script file (orchestrator/gateways/models/script.py): a text, or a mapping with `text`,
`tool_calls`, `fail`, `when` and so on. Which reply comes is a function of the conversation and the number of the
attempt, never of what was asked before: a turn whose worker died asks again, and must get the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from chordage.orchestrator.core.model import AssistantSays, Prompt, Reply, Said, ToolSays, UserSays
from chordage.orchestrator.gateways.models.script import (
    BadScript,
    PromptPosition,
    Script,
    ScriptedReply,
    ScriptModel,
    results_in,
)
from chordage.orchestrator.gateways.models.wire import AttemptContext

ReplyForm: TypeAlias = str | Mapping[str, Any]
SHOWN = 300  # characters of a text in a message about a failed assertion


class ScriptRefused(ValueError):
    """The replies of a `ScriptedModel` cannot be read."""


class NoReplyLeft(AssertionError):
    """The model was asked more often than its script foresees."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelQuestion:
    """One request to the model. `attempt` counts the requests for the same reply, from 1."""

    prompt: Prompt
    attempt: int

    @property
    def user(self) -> str:
        """The last message of the user."""
        return PromptPosition.of(self.prompt).user

    @property
    def replies(self) -> int:
        """How often the model has replied to it."""
        return PromptPosition.of(self.prompt).index

    @property
    def results(self) -> tuple[str, ...]:
        """The results of tools since that message."""
        return tuple(results_in(self.prompt))

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of those that are offered."""
        return tuple(offer.name for offer in self.prompt.offers)

    @property
    def text(self) -> str:
        """All that the model reads, for an assertion on it."""
        return "\n".join([self.prompt.system, *map(_line, self.prompt.said)])


class ScriptedModel:
    """`replies`: one after the other, from the first again behind each message of the user; or a function of the
    question. A last reply that is a text alone is said again when the model is asked once more, as after a decision.
    `asked`: every question so far, with those of processes that died.
    """

    def __init__(
        self,
        replies: Sequence[ReplyForm] | Callable[[ModelQuestion], ReplyForm],
        *,
        repeat: bool = False,
        default: ReplyForm | None = None,
        name: str = "scripted",
    ) -> None:
        self.name = name
        self.asked: list[ModelQuestion] = []
        self._script: Script | None = None
        self._function: Callable[[ModelQuestion], ReplyForm] | None = None
        if callable(replies):
            self._function = replies
            return
        if isinstance(replies, str) or not replies:
            raise ScriptRefused("a ScriptedModel takes a list of replies, with at least one, or a function")
        read = tuple(self._read(reply, f"reply {number}") for number, reply in enumerate(replies, 1))
        last = read[-1] if default is None else self._read(default, "the default reply")
        is_answer = default is not None or not (last.calls or last.fail or last.when)
        self._script = Script(replies=read, repeat=repeat, default=last if is_answer else None)

    def attempt(self, prompt: Prompt, context: AttemptContext) -> Reply:
        question = ModelQuestion(prompt=prompt, attempt=context.number)
        self.asked.append(question)
        return ScriptModel(lambda _prompt, _attempt: self._reply(question), self.name).attempt(prompt, context)

    def _reply(self, question: ModelQuestion) -> ScriptedReply:
        if self._function is not None:
            return self._read(self._function(question), "what the function returned")
        assert self._script is not None
        position = PromptPosition.of(question.prompt)
        reply = self._script.choose(position)
        if reply is None:
            raise NoReplyLeft(
                f"the script of model {self.name!r} has no reply number {position.index + 1} to {position.user[:80]!r}"
                ": add it, or give repeat=True or a default. The conversation so far:\n" + _shown(question)
            )
        return reply

    def _read(self, reply: ReplyForm, what: str) -> ScriptedReply:
        try:
            return ScriptedReply.of(dict(reply) if isinstance(reply, Mapping) else reply)
        except BadScript as error:
            raise ScriptRefused(f"model {self.name!r}: {what}: {error}") from error

    # Assertions

    def assert_asked(self, times: int) -> None:
        """How many questions there were."""
        if len(self.asked) != times:
            shown = "".join(f"\n{number}. {_last(question)}" for number, question in enumerate(self.asked, 1))
            raise AssertionError(f"model {self.name!r} was asked {len(self.asked)} times, not {times}:{shown}")

    def assert_read(self, text: str) -> None:
        """Some question had this text: in the instructions, a message or a result."""
        if not any(text in question.text for question in self.asked):
            last = _shown(self.asked[-1]) if self.asked else "It was never asked."
            raise AssertionError(f"model {self.name!r} never read {text!r}. What it read last:\n{last}")

    def assert_offered(self, tool: str) -> None:
        """Some question offered this tool."""
        offered = sorted({name for question in self.asked for name in question.tools})
        if tool not in offered:
            raise AssertionError(
                f"model {self.name!r} was never offered the tool {tool!r}, but: {', '.join(offered) or 'none'}"
            )


def _line(said: Said) -> str:
    match said:
        case UserSays(text=text):
            return f"user: {text}"
        case AssistantSays(text=text, asks=asks):
            calls = [f"{ask.name}({', '.join(f'{k}={v!r}' for k, v in (ask.arguments or {}).items())})" for ask in asks]
            return f"assistant: {' '.join(filter(None, [text, *calls]))}"
        case ToolSays(name=name, content=content):
            return f"{name}: {content}"


def _shown(question: ModelQuestion) -> str:
    return "\n".join(f"  {_line(said)[:SHOWN]}" for said in question.prompt.said)


def _last(question: ModelQuestion) -> str:
    return _line(question.prompt.said[-1])[:SHOWN] if question.prompt.said else "(nothing was said)"
