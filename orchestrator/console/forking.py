"""Fork a run from a step: the form with its edits, what the record will answer, and the new run beside the old one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import anyio.to_thread
from fastapi import Path, Query, Request
from fastapi.responses import Response

from chordage.orchestrator import stages, views
from chordage.orchestrator.api.callers import as_caller
from chordage.orchestrator.api.services import Services, services_of
from chordage.orchestrator.console.forms import SentForm, json_of, sent_form
from chordage.orchestrator.console.pages import PageContext, back, context_of, page_router, render
from chordage.orchestrator.console.words import pretty
from chordage.orchestrator.core import subagents
from chordage.orchestrator.core.agent import AgentSpec, Effect
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.errors import Conflict, InvalidDecision, InvalidMessage, NotFound, UserError
from chordage.orchestrator.core.inert import inert
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.stages import ForkEdits
from chordage.orchestrator.views import TurnView
from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.runs import InferenceStep, RunView, ToolRound

SOURCE = "console"
MOST_DIGITS = 9
ARGUMENTS = "arguments."  # and the model's id of the call
_ANSWERS = frozenset({CallStatus.SUCCEEDED, CallStatus.FAILED})

router = page_router()
Id = Annotated[str, Path(max_length=200)]
StepNumber = Annotated[int, Query(ge=0, lt=2**31)]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedTool:
    """A tool in the form. `effect` None: the agent does not have it any more."""

    name: str
    effect: Effect | None
    recorded: int  # how many calls of the run have a result
    is_allowed: bool = False

    @property
    def word(self) -> str:
        return self.effect.value if self.effect else "not a tool of the agent any more"


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkSight:
    """All that the form shows. `sent`: what was filled in, where it was refused."""

    run: RunView
    turn: TurnView
    step: int
    steps: tuple[int, ...]  # that a fork can begin behind
    round: tuple[CallView, ...]  # the calls whose arguments may be edited
    tools: tuple[RecordedTool, ...]
    models: tuple[str, ...]
    instructions: str
    sent: Mapping[str, str]

    @property
    def recorded(self) -> int:
        return sum(tool.recorded for tool in self.tools)

    @property
    def effects(self) -> int:
        """Recorded calls of tools that may have had an effect."""
        return sum(tool.recorded for tool in self.tools if tool.effect is not Effect.PURE)

    def value(self, name: str, own: str) -> str:
        return self.sent.get(name, own)


@router.get("/runs/{run_id}/fork")
def show_form(request: Request, run_id: Id, step: StepNumber = 0) -> Response:
    context = context_of(request, KeyScope.READ, KeyScope.OPERATE, KeyScope.SUBMIT)
    run, _ = _source(services_of(request), context, run_id)
    try:  # nothing is written: a form that cannot be sent is not filled in first
        stages.fork_request(
            services_of(request).rt, run.run_id, step, ForkEdits(), space=context.caller.space, source=SOURCE
        )  # fmt: skip
    except Conflict as error:
        return _form(request, context, run_id, step, SentForm(), fault=str(error), is_refused=True)
    return _form(request, context, run_id, step, SentForm())


@router.post("/runs/{run_id}/fork")
async def fork(request: Request, run_id: Id) -> Response:
    form = await sent_form(request)
    return await anyio.to_thread.run_sync(_fork, request, run_id, form)


def _fork(request: Request, run_id: str, form: SentForm) -> Response:
    context = context_of(request, KeyScope.READ, KeyScope.OPERATE, KeyScope.SUBMIT)
    services = services_of(request)
    run, turn = _source(services, context, run_id)
    step = _step(form.first("step"))
    try:
        edits = _edits(form, run, turn, step, instructions=_instructions(services, context, run))
        turn_request = stages.fork_request(
            services.rt, run.run_id, step, edits, space=context.caller.space, source=SOURCE
        )  # fmt: skip
        made, intents = stages.fork_run(services.rt, as_caller(services, turn_request, context.caller))
    except (InvalidDecision, InvalidMessage, Conflict) as error:
        return _form(request, context, run_id, step, form, fault=str(error))
    services.send(intents)
    return back(context, f"/runs/{made.turn_id}", done="forked")


def _step(text: str) -> int:
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise NotFound("there is no such step")
    return int(text)


def _edits(form: SentForm, run: RunView, turn: TurnView, step: int, *, instructions: str) -> ForkEdits:
    """A field that is empty, or as it was, is no edit."""
    arguments: dict[str, dict[str, Any]] = {}
    for call in _round(run, step):
        written = form.first(f"{ARGUMENTS}{call.ask_id}")
        if not written.strip() or written == pretty(call.arguments):
            continue
        value = json_of(written, f"Arguments of {call.tool}")
        if not isinstance(value, dict):
            raise InvalidDecision(f"Arguments of {call.tool}: give a JSON object", field="arguments")
        if value != call.arguments:
            arguments[call.ask_id] = value
    effects = frozenset(form.every("effects"))
    return ForkEdits(
        text=_edited(form.first("text"), turn.text), arguments=arguments, model=form.first("model") or None,
        instructions=_edited(form.first("instructions"), instructions), effects=effects,
    )  # fmt: skip


def _edited(written: str, own: str) -> str | None:
    """The form shows hidden characters as their escapes: a text that comes back so is as it was."""
    return None if not written.strip() or written in {own.replace("\r\n", "\n"), inert(own)} else written


def _form(
    request: Request,
    context: PageContext,
    run_id: str,
    step: int,
    form: SentForm,
    *,
    fault: str = "",
    is_refused: bool = False,
) -> Response:
    sight = _sight(services_of(request), context, run_id, step, form)
    status = 409 if is_refused else 422 if fault else 200
    return render(request, context, "fork.html", status=status, sight=sight, fault=fault, is_refused=is_refused)


def _sight(services: Services, context: PageContext, run_id: str, step: int, form: SentForm) -> ForkSight:
    run, turn = _source(services, context, run_id)
    spec, tools = _tools(services, run, form)
    return ForkSight(
        run=context.shown(run), turn=context.shown(turn), step=step, steps=(0, *_steps(run)),
        round=_round(context.shown(run), step), tools=tools, models=spec.named_models if spec else (),
        instructions=_instructions(services, context, run), sent=dict(form.pairs),
    )  # fmt: skip


def _source(services: Services, context: PageContext, run_id: str) -> tuple[RunView, TurnView]:
    """Raises NotFound for what lies outside the reach of the caller."""
    run = views.run(services.rt.store, run_id, space=context.caller.reach)
    return run, views.turn(services.rt.store, run.turn_id, space=context.caller.reach)


def _steps(run: RunView) -> tuple[int, ...]:
    """The last reply has nothing behind it."""
    replies = [one for one in run.steps if isinstance(one, InferenceStep) and one.stop is not None]
    return tuple(one.number for one in replies if one.asks or one is not replies[-1])


def _round(run: RunView, step: int) -> tuple[CallView, ...]:
    """The calls of the last reply that the fork keeps."""
    kept = [one.number for one in run.steps if isinstance(one, InferenceStep) and one.number <= step]
    rounds = {one.number - 1: one.calls for one in run.steps if isinstance(one, ToolRound)}
    return rounds.get(kept[-1], ()) if kept else ()


def _tools(services: Services, run: RunView, form: SentForm) -> tuple[AgentSpec | None, tuple[RecordedTool, ...]]:
    """Those that the run has called, and the others of its agent."""
    calls = [call for one in run.steps if isinstance(one, ToolRound) for call in one.calls]
    recorded = Counter(call.tool for call in calls if call.status in _ANSWERS)
    spec, effects = None, {}
    try:
        spec = services.rt.agents.get(run.agent)
        effects = {name: tool.effect for name, tool in services.rt.tools.specs(spec).items()}
        effects |= dict.fromkeys(subagents.specs(spec), Effect.UNSAFE)
    except UserError:  # the form says what is wrong with it when it is sent
        pass
    allowed = set(form.every("effects"))
    return spec, tuple(
        RecordedTool(name=name, effect=effects.get(name), recorded=recorded[name], is_allowed=name in allowed)
        for name in sorted({*recorded, *effects}, key=lambda name: (-recorded[name], name))
    )


def _instructions(services: Services, context: PageContext, run: RunView) -> str:
    """Those of the room are shown to its operator alone."""
    if not (context.may("payloads") and context.caller.sees_all):
        return ""
    try:
        return services.rt.agents.get(run.agent).instructions
    except UserError:
        return ""


# Beside each other


@router.get("/runs/{run_id}/compare")
def show_comparison(
    request: Request, run_id: Id, other: Annotated[str, Query(max_length=200, alias="with")] = ""
) -> Response:
    """By default with the run that it is a fork of."""
    context = context_of(request, KeyScope.READ)
    services = services_of(request)
    second, second_turn = _source(services, context, run_id)
    other = other or second.fork_of or ""
    if not other:
        raise NotFound(f"run {run_id} is no fork: give the run to compare it with, as ?with=RUN")
    first, first_turn = _source(services, context, other)
    comparison = views.compare(first, second, (first_turn.text, second_turn.text))
    return render(
        request, context, "compare.html", first=context.shown(first), second=context.shown(second),
        comparison=context.shown(comparison), turns=(context.shown(first_turn), context.shown(second_turn)),
    )  # fmt: skip
