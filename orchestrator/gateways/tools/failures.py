"""What went wrong with a call, in words for the model. Never a traceback: that goes to the log."""

from __future__ import annotations

from difflib import get_close_matches

from chordage.orchestrator.gateways.ports import ToolOutcome
from chordage.orchestrator.gateways.tools.results import NotJson, storable
from chordage.orchestrator.gateways.tools.suspend import Suspend

MESSAGE_LIMIT = 4_000


class TimedOut(Exception):
    """The attempt ran into its timeout."""


class Told(Exception):
    """A failure that brings its code and its words along: who raises it knows more than can be seen from outside."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


def unknown(name: str, names: list[str]) -> str:
    close = get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"There is no tool {_short(repr(name), 80)}.{hint} The tools are: {', '.join(sorted(names)) or 'none'}."


def unfit(name: str, complaints: str) -> str:
    return f"{name} was not run, because its arguments do not fit:\n{complaints}"


def outcome(tool: str, error: BaseException, *, timeout: float, tries: int) -> ToolOutcome:
    match error:
        case TimedOut():
            said = f"{tool} did not finish within {timeout:g} s and was told to stop. What it has done is not known."
            return _failed("timeout", said, tries)
        case Told():
            return _failed(error.code, _words(error), tries)
        case Suspend():
            said = f"{tool} asked for a decision where nobody can be asked: a reconcile hook must not suspend."
            return _failed("suspended_in_hook", said, tries)
        case SystemExit() | KeyboardInterrupt():
            said = f"{tool} ended itself with {error!r} instead of returning a result or raising an error."
            return _failed("raised", said, tries)
        case NotJson():
            return _failed("result_not_json", f"{tool} ran, but its result cannot be shown: {_words(error)}", tries)
        case _:
            return _failed("raised", f"{type(error).__name__}: {_words(error)}".removesuffix(": "), tries)


def _failed(code: str, said: str, tries: int) -> ToolOutcome:
    return ToolOutcome(content=f"ToolError: {said}", code=code, tries=tries)


def _words(error: BaseException) -> str:
    try:
        return _short(storable(str(error)), MESSAGE_LIMIT)
    except Exception as worse:
        return f"(its text cannot be read: {type(worse).__name__})"


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."
