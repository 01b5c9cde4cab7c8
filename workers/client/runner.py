"""A stepped turn as a loop of its consumer: each reply is handed out and held until the loop comes round again.

The runner keeps nothing that matters: the turn is in the database of the fleet, and any process may go on with it by
its run id. `break` parks the run; a runner that was made anew hands out first what it finds held, for nobody knows
whether the one before it has looked at it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import structlog

from chordage.orchestrator.core.errors import ChordageError, ModelFailed, StepRefused
from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.core.stepping import Drive, Standing
from chordage.orchestrator.plugins.planners import FAULT, PlannerFailed
from chordage.workers.client.message import Message, Outcome, Pushed, as_given
from chordage.workers.client.ways import Way

log = structlog.get_logger()

LOOK = 1.0  # seconds between two looks while nothing is heard
MOVING = frozenset({Standing.QUEUED, Standing.REQUESTING, Standing.TOOLING, Standing.WAITING})
ANY_REV = frozenset({"steer", "options", "compact", "run", "cancel"})  # what is meant whatever has happened meanwhile
Shown = Mapping[str, Any]


class Runner:
    """Made by `client.runner(...)`. `timeout`: seconds that one wait may take; None: for ever."""

    def __init__(self, way: Way, target: str, *, timeout: float | None = None) -> None:
        self._way = way
        self._timeout = timeout
        self._shown = way.look(target)
        self._handed_out: str | None = None  # what the loop has seen

    @property
    def turn_id(self) -> str:
        return str(self._shown["turn_id"])

    @property
    def run_id(self) -> str:
        """Known once the turn has started; waits for that."""
        return str(self._wait(lambda shown: shown["run_id"] is not None or _is(shown, Standing.DONE))["run_id"])

    @property
    def standing(self) -> Standing:
        return Standing(self.look()["standing"])

    def look(self) -> Shown:
        """The turn as it is now: a copy, and editing it changes nothing."""
        self._shown = self._way.look(self.turn_id)
        return self._shown

    # the loop

    def __iter__(self) -> Iterator[Message]:
        try:
            yield from self._messages()
        except GeneratorExit:
            self._break_off()
            raise

    def _messages(self) -> Iterator[Message]:
        has_driven = False
        while True:
            shown = self._at_rest() if has_driven else self._once_started()
            if _is(shown, Standing.DONE):
                return
            if _is(shown, Standing.FAILED) and has_driven:
                raise _failure(shown)
            message = Message.of(shown)
            if message is not None and message.id != self._handed_out:
                self._handed_out = message.id
                yield message
            has_driven = True
            if not self._goes_on():
                return

    def _goes_on(self) -> bool:
        """The turn may have been ended inside the loop, or elsewhere."""
        try:
            self._do("next")
        except StepRefused as refused:
            if refused.standing != Standing.DONE:
                raise
            return False
        return True

    def _once_started(self) -> Shown:
        """`next` may be said to a turn that still queues."""
        return self._wait(lambda shown: _is(shown, Standing.QUEUED) or not _moves(shown))

    def _at_rest(self) -> Shown:
        return self._wait(lambda shown: not _moves(shown))

    def _break_off(self) -> None:
        """Resumable, by this runner or by another one."""
        try:
            if not _is(self._shown, Standing.DONE, Standing.PARKED):
                self._send("park", if_rev=self._shown["rev"])
        except ChordageError as error:
            log.info("a run was not parked", turn=self.turn_id, why=str(error))

    # what may be done inside the loop, or before it

    def push_messages(self, *messages: Message | Pushed | Sequence[Pushed]) -> None:
        """Take the history into your own hands: what you push is what is sent, the reply is not unless you push it."""
        self._do("messages", messages=as_given(messages))

    def steer(self, text: str) -> None:
        """Words behind the results; the reply and its calls are handled as ever."""
        self._do("steer", text=text)

    def set_params(
        self, params: Mapping[str, Any] | None = None, /, *, messages: Sequence[Any] | None = None, **named: Any
    ) -> None:
        """What is not named stays, None removes. With `messages` the whole history is yours."""
        given = {"params": {**(params or {}), **named}}
        self._do("params", **given, **({} if messages is None else {"messages": as_given(messages)}))

    def set_options(self, **options: Any) -> None:
        """model_timeout, model_retries, stream."""
        self._do("options", options=options)

    def set_plan(self, plan: Mapping[str, Any] | str) -> None:
        """Another decision, as a planner may write it; `{"next_action": "response"}`: on to the answer."""
        self._do("plan", plan=plan if isinstance(plan, str) else dict(plan))

    def compact(self) -> None:
        """The older part of the history gives way to a summary, before the next request."""
        self._do("compact")

    def generate_tool_response(self) -> list[dict[str, Any]] | None:
        """The results of the held reply's calls, carried out once; None: it asks for none, or stopped before them."""
        self._do("tool_response")
        return self._tool_response()

    def retry_tools(self, *ask_ids: str, force: bool = False) -> list[dict[str, Any]] | None:
        """These calls once more. `force`: also where they may have taken effect."""
        self._do("retry", ask_ids=list(ask_ids), force=force)
        return self._tool_response()

    def _tool_response(self) -> list[dict[str, Any]] | None:
        def is_there(shown: Shown) -> bool:
            return not _moves(shown) and (shown["tool_response"] is not None or not shown["calls"])

        response: list[dict[str, Any]] | None = self._wait(is_there)["tool_response"]
        return response

    def supply_tool_results(self, *results: Mapping[str, Any]) -> None:
        """Results of your own, `{"ask_id", "content", "is_error"?}`; these calls do not run, or no longer count."""
        self._do("tool_results", results=[dict(one) for one in results])

    def hold_calls(self, *ask_ids: str) -> None:
        """They run only after `decide_call(..., allow=True)`, or a decision from the inbox."""
        self._do("hold", ask_ids=list(ask_ids))

    def decide_call(self, ask_id: str, *, allow: bool, reason: str | None = None, payload: Any = True) -> None:
        """Before it is opened, or when it waits for a decision, of whichever round. `payload`: what is answered."""
        answer = {"payload": payload} if allow and payload is not True else {}
        self._do("decide", ask_id=ask_id, allow=allow, reason=reason, **answer)

    # ways to end

    def park(self) -> None:
        self._do("park")

    def cancel(self, reason: str | None = None) -> None:
        self._do("cancel", reason=reason)

    def until_done(self) -> Outcome:
        """Let it go on by itself, and wait for its end."""
        if not _is(self.look(), Standing.DONE):
            self._do("run")
        return self.done()

    def done(self) -> Outcome:
        """Wait for the end without driving; somebody else has to."""
        return Outcome.of(self._wait(lambda shown: _is(shown, Standing.DONE)))

    # underneath

    def _do(self, verb: str, **args: Any) -> None:
        """At the revision we have seen; while nothing has changed that a consumer goes by, at the newest one."""
        seen = self._shown
        while True:
            try:
                self._send(verb, if_rev=None if verb in ANY_REV else self._shown["rev"], **args)
            except StepRefused as refused:
                if refused.code != "stale_rev" or _essence(self.look()) != _essence(seen):
                    raise
            else:
                self.look()
                return

    def _send(self, verb: str, *, if_rev: int | None = None, **args: Any) -> None:
        key = uuid.uuid4().hex
        self._way.step({"turn": self.turn_id, "verb": verb, "args": args, "if_rev": if_rev, "key": key})

    def _wait(self, is_enough: Callable[[Shown], bool]) -> Shown:
        until = None if self._timeout is None else time.monotonic() + self._timeout
        with self._way.watching(self.turn_id) as word:
            while not is_enough(shown := self.look()):
                left = LOOK if until is None else until - time.monotonic()
                if left <= 0:
                    told = f"turn {self.turn_id} is {shown['standing']} after {self._timeout:g} s"
                    raise TimeoutError(told)
                word.wait(min(LOOK, left))
        return shown


def _is(shown: Shown, *standings: Standing) -> bool:
    return shown["standing"] in standings


def _moves(shown: Shown) -> bool:
    """Also while it is held for a moment only, because somebody has said already what follows."""
    return _is(shown, *MOVING) or (shown["drive"] != Drive.STEP and not _is(shown, Standing.DONE))


def _essence(shown: Shown) -> tuple[Any, ...]:
    """What a consumer goes by when it decides: what is held, and how the history stands."""
    held = shown["reply"] or shown["round"]
    return (held["id"] if held else None, shown["iteration"], shown["pending"], shown["replaces"], shown["plan"])


def _failure(shown: Shown) -> ModelFailed | PlannerFailed:
    told = shown["error"]
    if told["fault"] == FAULT:
        return PlannerFailed(told["detail"])
    return ModelFailed(told["detail"], fault=Fault(told["fault"]), attempts=())
