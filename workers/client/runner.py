"""A stepped turn as a loop: each reply is yielded, and held until the loop asks for the next one.

The runner keeps no state: the turn is in the database of the fleet, and any process may continue it by its run id.
`break` parks the run. A new runner first yields the held reply again: the runner before it may not have handled it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import structlog

from chordage.orchestrator.core.errors import ChordageError, ModelFailed, StepRefused
from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.core.stepping import Drive, Standing
from chordage.orchestrator.plugins.planners import FAULT, PlannerFailed
from chordage.workers.client.message import HeldMessage, Pushed, RunOutcome, pushed_messages

log = structlog.get_logger()

READ_EVERY = 1.0  # seconds, if no notification comes
MOVING = frozenset({Standing.QUEUED, Standing.REQUESTING, Standing.TOOLING, Standing.WAITING})
ANY_REV = frozenset({"steer", "options", "compact", "run", "cancel"})  # verbs that are meant at any revision
STEP_FIELDS = ("max_iterations", "cap_policy", "hold_seconds", "on_held", "params", "options")
TurnState = Mapping[str, Any]  # a stepped turn, as views.SteppedView is on the wire


class Waits(Protocol):
    def wait(self, seconds: float) -> object:
        """Until a notification comes, or the time is over."""


class FleetAccess(Protocol):
    def submit(self, fields: Mapping[str, Any]) -> str:
        """The id of the new turn."""

    def step(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Apply a verb; the state of the turn after it."""

    def read(self, turn: str) -> dict[str, Any]:
        """The state of a turn, by its id or that of its run."""

    def subscribed(self, turn_id: str) -> AbstractContextManager[Waits]:
        """Notifications that the turn may have changed."""

    def close(self) -> None: ...


class Runner:
    """Made by `client.runner(...)`. `timeout`: the longest wait in seconds; None: no limit."""

    def __init__(self, access: FleetAccess, target: str, *, timeout: float | None = None) -> None:
        self._access = access
        self._timeout = timeout
        self._state = access.read(target)
        self._yielded: str | None = None  # the id of the last message

    @property
    def turn_id(self) -> str:
        return str(self._state["turn_id"])

    @property
    def run_id(self) -> str:
        """Waits until the turn has started."""
        return str(self._wait(lambda turn: turn["run_id"] is not None or _is(turn, Standing.DONE))["run_id"])

    @property
    def standing(self) -> Standing:
        return Standing(self.look()["standing"])

    def look(self) -> TurnState:
        """The turn as it is now. A copy: changing it has no effect."""
        self._state = self._access.read(self.turn_id)
        return self._state

    # The loop

    def __iter__(self) -> Iterator[HeldMessage]:
        try:
            yield from self._messages()
        except GeneratorExit:
            self._park_quietly()
            raise

    def _messages(self) -> Iterator[HeldMessage]:
        has_driven = False
        # A queued turn accepts `next` too: the first iteration need not wait for its start.
        turn = self._wait(lambda turn: not _moves(turn) or _is(turn, Standing.QUEUED))
        while True:
            if _is(turn, Standing.DONE):
                return
            if _is(turn, Standing.FAILED) and has_driven:
                raise _failure(turn)
            message = HeldMessage.of(turn)
            if message is not None and message.id != self._yielded:
                self._yielded = message.id
                yield message
            has_driven = True
            try:
                self._do("next")
            except StepRefused as refused:
                if refused.standing != Standing.DONE:  # done: it was ended inside the loop, or elsewhere
                    raise
                return
            turn = self._wait(lambda turn: not _moves(turn))

    def _park_quietly(self) -> None:
        """After `break`. The run can be resumed, by this runner or by another one."""
        try:
            if not _is(self._state, Standing.DONE, Standing.PARKED):
                self._send("park", if_rev=self._state["rev"])
        except ChordageError as error:
            log.info("a run was not parked", turn=self.turn_id, why=str(error))

    # Inside the loop, or before it

    def push_messages(self, *messages: HeldMessage | Pushed | Sequence[Pushed]) -> None:
        """Write the history yourself: the next request has what you push. The held reply is part of it only if you
        push it too.
        """
        self._do("messages", messages=pushed_messages(messages))

    def steer(self, text: str) -> None:
        """Add a text behind the results. The reply and its calls are handled as usual."""
        self._do("steer", text=text)

    def set_params(
        self, params: Mapping[str, Any] | None = None, /, *, messages: Sequence[Any] | None = None, **named: Any
    ) -> None:
        """Change parameters of the next requests: others stay, None removes one. `messages`: replace the history."""
        history = {} if messages is None else {"messages": pushed_messages(messages)}
        self._do("params", params={**(params or {}), **named}, **history)

    def set_options(self, **options: Any) -> None:
        """model_timeout, model_retries, stream."""
        self._do("options", options=options)

    def set_plan(self, plan: Mapping[str, Any] | str) -> None:
        """Replace the planner's decision. `{"next_action": "response"}` goes straight to the answer."""
        self._do("plan", plan=plan if isinstance(plan, str) else dict(plan))

    def compact(self) -> None:
        """Replace the older part of the history with a summary, before the next request."""
        self._do("compact")

    def generate_tool_response(self) -> list[dict[str, Any]] | None:
        """Run the held reply's calls, once, and return their results. None: it asks for none, or the run ended before
        them.
        """
        self._do("tool_response")
        return self._tool_response()

    def retry_tools(self, *ask_ids: str, force: bool = False) -> list[dict[str, Any]] | None:
        """Run these calls again. `force`: also those that may have taken effect."""
        self._do("retry", ask_ids=list(ask_ids), force=force)
        return self._tool_response()

    def _tool_response(self) -> list[dict[str, Any]] | None:
        def is_complete(turn: TurnState) -> bool:
            return not _moves(turn) and (turn["tool_response"] is not None or not turn["calls"])

        response: list[dict[str, Any]] | None = self._wait(is_complete)["tool_response"]
        return response

    def supply_tool_results(self, *results: Mapping[str, Any]) -> None:
        """Your own results, `{"ask_id", "content", "is_error"?}`, instead of those of the calls."""
        self._do("tool_results", results=[dict(result) for result in results])

    def hold_calls(self, *ask_ids: str) -> None:
        """These calls run only after `decide_call(..., allow=True)`, or a decision from the inbox."""
        self._do("hold", ask_ids=list(ask_ids))

    def decide_call(self, ask_id: str, *, allow: bool, reason: str | None = None, payload: Any = True) -> None:
        """Decide about a call of any round, before it starts or while it waits. `payload`: the answer."""
        answer = {"payload": payload} if allow and payload is not True else {}
        self._do("decide", ask_id=ask_id, allow=allow, reason=reason, **answer)

    # The end

    def park(self) -> None:
        self._do("park")

    def cancel(self, reason: str | None = None) -> None:
        self._do("cancel", reason=reason)

    def until_done(self) -> RunOutcome:
        """Let the run continue by itself, and wait for its end."""
        if not _is(self.look(), Standing.DONE):
            self._do("run")
        return self.done()

    def done(self) -> RunOutcome:
        """Wait for the end without driving: another program drives."""
        return RunOutcome.of(self._wait(lambda turn: _is(turn, Standing.DONE)))

    # Verbs and waits

    def _do(self, verb: str, **args: Any) -> None:
        """Apply a verb at the revision that was read last. If a newer one differs in nothing that a consumer decides
        by, apply it there.
        """
        before = self._state
        while True:
            try:
                self._send(verb, if_rev=None if verb in ANY_REV else self._state["rev"], **args)
            except StepRefused as refused:
                if refused.code != "stale_rev" or _essence(self.look()) != _essence(before):
                    raise
            else:
                self.look()
                return

    def _send(self, verb: str, *, if_rev: int | None = None, **args: Any) -> None:
        key = uuid.uuid4().hex
        self._access.step({"turn": self.turn_id, "verb": verb, "args": args, "if_rev": if_rev, "key": key})

    def _wait(self, is_enough: Callable[[TurnState], bool]) -> TurnState:
        until = None if self._timeout is None else time.monotonic() + self._timeout
        with self._access.subscribed(self.turn_id) as notification:
            while not is_enough(turn := self.look()):
                left = READ_EVERY if until is None else until - time.monotonic()
                if left <= 0:
                    message = f"turn {self.turn_id} is {turn['standing']} after {self._timeout:g} s"
                    raise TimeoutError(message)
                notification.wait(min(READ_EVERY, left))
        return turn


def runner_for(
    access: FleetAccess, text: str | None, run_id: str | None, timeout: float | None, fields: Mapping[str, Any]
) -> Runner:
    """Of a new turn, or of an existing one."""
    if (text is None) == (run_id is None):
        raise TypeError("runner() takes the text of a new turn, or the run_id of an existing one")
    if text is None:
        assert run_id is not None
        return Runner(access, run_id, timeout=timeout)
    terms = {name: fields[name] for name in STEP_FIELDS if name in fields}
    others = {name: value for name, value in fields.items() if name not in terms}
    target = access.submit({**others, "text": text, "control": "step", "step": terms})
    return Runner(access, target, timeout=timeout)


def _is(turn: TurnState, *standings: Standing) -> bool:
    return turn["standing"] in standings


def _moves(turn: TurnState) -> bool:
    """Also while it is held for a moment only, because its consumer has already chosen what is next."""
    return _is(turn, *MOVING) or (turn["drive"] != Drive.STEP and not _is(turn, Standing.DONE))


def _essence(turn: TurnState) -> tuple[Any, ...]:
    """What a consumer decides by: what is held, and the state of the history."""
    held = turn["reply"] or turn["round"]
    return (held["id"] if held else None, turn["iteration"], turn["pending"], turn["replaces"], turn["plan"])


def _failure(turn: TurnState) -> ModelFailed | PlannerFailed:
    error = turn["error"]
    if error["fault"] == FAULT:
        return PlannerFailed(error["detail"])
    return ModelFailed(error["detail"], fault=Fault(error["fault"]), attempts=())
