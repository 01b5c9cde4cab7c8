"""What the model reads of a call: its result as text, a preview where it is too long, or what went wrong.

Never a traceback: that goes to the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from chordage.orchestrator.core.agent_versions import SHOWN
from chordage.orchestrator.core.text import clean_text
from chordage.orchestrator.gateways.ports import ToolOutcome
from chordage.orchestrator.gateways.tools.context import Suspend
from chordage.orchestrator.system.user_code import words_of

READER = "read_result"  # the tool that reads the rest
KEPT = "The whole result is kept as call:"


class NotJson(Exception):
    """The tool returned something that cannot be shown to a model."""


class ToolTimeout(Exception):
    """The attempt took longer than its timeout."""


class ToolError(Exception):
    """A failure with its code and its text for the model, raised where more is known than the executor can see."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def as_text(value: Any) -> str:
    """A string as it is, anything else as JSON. Raises NotJson.

    None is `null`, as in JSON: "done" would claim more than the tool said.
    """
    if isinstance(value, str):
        return clean_text(str.__str__(value))
    if isinstance(value, bytes | bytearray | memoryview):
        raise NotJson("it returned bytes; decode them, or encode them as base64 text")
    if isinstance(value, Iterator):  # it may have no end, and would be read inside compiled code
        raise NotJson(f"it returned a {type(value).__name__}; return a list of what is in it")
    from pydantic_core import to_json

    try:
        return clean_text(to_json(value, inf_nan_mode="strings").decode())
    except Exception as error:  # a user's serializer may raise anything
        raise NotJson(f"it returned a {type(value).__name__} that is not JSON: {error}") from error


def success(text: str, *, limit: int, call_id: str, seconds: float | None) -> ToolOutcome:
    if len(text) <= limit:
        return ToolOutcome(content=text, seconds=seconds)
    note = f"[These are the first {limit} of {len(text)} characters. {KEPT}{call_id}; {READER} reads it in parts]"
    return ToolOutcome(content=f"{text[:limit]}\n{note}", full=text, seconds=seconds)


def is_preview(content: str | None) -> bool:
    return content is not None and content.endswith("]") and KEPT in content[-300:]


def failure(tool: str, error: BaseException, *, timeout: float) -> ToolOutcome:
    match error:
        case ToolTimeout():
            return failed(
                "timeout",
                f"{tool} did not finish within {timeout:g} s and was told to stop. What it has done is not known.",
            )
        case ToolError():
            return failed(error.code, words_of(error))
        case Suspend():
            return failed(
                "suspended_in_hook",
                f"{tool} asked for a decision in its reconcile hook; a reconcile hook must not suspend.",
            )
        case SystemExit() | KeyboardInterrupt():
            return failed("raised", f"{tool} tried to end its process with {error!r} instead of returning or raising.")
        case NotJson():
            return failed("result_not_json", f"{tool} ran, but its result cannot be shown: {words_of(error)}")
        case _:
            return failed("raised", f"{type(error).__name__}: {words_of(error)}".removesuffix(": "))


def failed(code: str, message: str) -> ToolOutcome:
    return ToolOutcome(content=f"ToolError: {message}", code=code)


def gone_tool(name: str, agent: str, digest: str) -> str:
    return (
        f"{name} was not run: it belongs to version {digest[:SHOWN]} of agent {agent}, with which this run began, and "
        f"today's code does not have it. Operators: `chordage agents {agent} --adopt`, or put the tool back."
    )


def unknown_tool(name: str, names: list[str]) -> str:
    close = get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"There is no tool {_shortened(repr(name), 80)}.{hint} The tools are: {', '.join(sorted(names)) or 'none'}."


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."
