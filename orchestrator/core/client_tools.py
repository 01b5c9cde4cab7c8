"""Tools that a caller brings with its message and carries out itself.

They belong to that turn alone: they are journalled with its message, and offered to the model together with the agent's
own tools. A call of one is a suspended call from the start. No worker runs it, and the decision about it is its result.
So a caller that dies with a call leaves a question, and a result that is sent again is the same decision.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core.agent import Effect, ToolSpec
from chordage.orchestrator.core.approvals import Action, DecisionRequest, Question, ResumeMode, Why
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.limits import LONGEST
from chordage.orchestrator.core.records import Call, NewCall

FIELD = "client_tools"
MOST = 128  # of one turn
MOST_PARTS = 4_000  # lists and tables in the schemas of one turn; each is checked in about 0.2 milliseconds
DESCRIPTION_MAX = 4_000  # characters
EXPIRES_IN = 86_400.0  # seconds; a caller may have gone for good
WITH_CALLER = "caller: it carries the call out"  # where such a call runs
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what every provider takes


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientTool:
    name: str
    description: str
    schema: dict[str, Any]  # of its arguments
    expires_in: float | None = EXPIRES_IN  # seconds that a call waits for its result; None: without a limit

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(name=self.name, description=self.description, schema=self.schema, effect=Effect.UNSAFE)

    @property
    def question(self) -> Question:
        prompt = f"The caller carries {self.name} out. The answer is the result of the call."
        return Question(why=Why.CLIENT, prompt=prompt, resume_mode=ResumeMode.USE_AS_RESULT, expires_in=self.expires_in)

    def as_stored(self) -> dict[str, Any]:
        return {
            "name": self.name, "description": self.description, "schema": self.schema, "expires_in": self.expires_in
        }  # fmt: skip


def stored(tools: Sequence[ClientTool]) -> list[dict[str, Any]] | None:
    return [tool.as_stored() for tool in tools] or None


def from_stored(tools: Iterable[Mapping[str, Any]] | None) -> tuple[ClientTool, ...]:
    """Of two with one name, which two messages of one run may bring, the later."""
    return tuple({tool["name"]: ClientTool(**tool) for tool in tools or ()}.values())


def check(tools: Sequence[ClientTool]) -> None:
    """The rules that need nothing else. Raises InvalidMessage."""
    if len(tools) > MOST:
        raise InvalidMessage(f"{FIELD} has {len(tools)} tools, the limit is {MOST}", field=FIELD)
    if (parts := sum(_parts(tool.schema) for tool in tools)) > MOST_PARTS:
        problem = f"the schemas of {FIELD} have {parts} lists and tables, the limit is {MOST_PARTS}: offer fewer tools"
        raise InvalidMessage(problem, field=FIELD)
    names: set[str] = set()
    for tool in tools:
        if not NAME.fullmatch(tool.name):
            problem = f"a tool is called {tool.name!r:.80}: give 1 to 64 letters, digits, _ and -"
            raise InvalidMessage(problem, field=FIELD)
        if tool.name in names:
            raise InvalidMessage(f"two tools are called {tool.name!r}: give each a name of its own", field=FIELD)
        names.add(tool.name)
        if len(tool.description) > DESCRIPTION_MAX:
            problem = f"the description of {tool.name!r} has more than {DESCRIPTION_MAX} characters: shorten it"
            raise InvalidMessage(problem, field=FIELD)
        if tool.expires_in is not None and not 0 < tool.expires_in <= LONGEST:
            problem = f"expires_in of {tool.name!r} is {tool.expires_in:g}: give more than 0 seconds"
            problem += f" and at most {LONGEST:g}, or null"
            raise InvalidMessage(problem, field=FIELD)


def _parts(schema: Any) -> int:
    found, left = 0, [schema]
    while left:
        value = left.pop()
        if isinstance(value, Mapping | list | tuple):
            found += 1
            left += value.values() if isinstance(value, Mapping) else value
    return found


def is_with_caller(call: Call | NewCall) -> bool:
    return call.placed == WITH_CALLER


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientResult:
    """What a caller says of a call that it has carried out. `error`: why it could not."""

    content: Any = None
    error: str | None = None

    def decision(self, target: str) -> DecisionRequest:
        if self.error is not None:
            return DecisionRequest(target=target, action=Action.CANCEL, reason=self.error)
        return DecisionRequest(target=target, action=Action.RESUME, payload=self.content)
