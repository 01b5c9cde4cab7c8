"""`chordage drill`: break a live fleet within stated bounds, and say whether it recovered and lost nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.drill import (
    AGENT_NAME,
    SPACE,
    DrillReport,
    DrillResult,
    DrillStep,
    StepReport,
)
from chordage.orchestrator.core.errors import ChordageError, Unavailable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import prefix
from chordage.workers.cli.context import check_ready_with_redis, command_settings, open_runtime, send
from chordage.workers.cli.erase import erase_in_redis
from chordage.workers.cli.output import busy, exit_code, json_option, print_json, print_table, say, say_lines

if TYPE_CHECKING:
    from chordage.config.settings import Settings
    from chordage.orchestrator.core.presence import HeldWork
    from chordage.orchestrator.runtime import Runtime
    from chordage.workers.drill.game_day import DrillPlan

VIOLATED, NOT_RUN = 1, 2  # exit codes
LONGEST_CUT = 60.0
COLUMNS = ("step", "result", "turns", "median", "worst", "bound", "repeated", "unknown")
COLOURS = {DrillResult.HELD: "green", DrillResult.VIOLATED: "red", DrillResult.NOT_RUN: "yellow"}
EPILOG = """\
\b
Exit codes:
0    every step held; or nothing was asked for but the plan
1    a step was violated: something was lost, doubled or late
2    a step could not be carried out, or you said no
130  you interrupted it
"""


def _steps(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[DrillStep, ...]:
    if value is None:
        return tuple(DrillStep)
    names = [name.strip() for name in value.split(",") if name.strip()]
    unknown = [name for name in names if name not in list(DrillStep)]
    if unknown or not names:
        raise click.BadParameter(f"{', '.join(unknown) or 'nothing'} is no step: choose from {', '.join(DrillStep)}")
    return tuple(step for step in DrillStep if step in names)


@click.command(epilog=EPILOG)
@click.option("--only", "steps", metavar="STEPS", callback=_steps, help="Only these: canary,kill,redis,clock.")
@click.option(
    "--worker",
    metavar="NAME",
    help="Kill this worker of the fleet, by its name or process number; it needs CHORDAGE_DRILL=on. "
    "[default: one that the drill starts]",
)
@click.option(
    "--group",
    type=click.Choice([str(group) for group in Group]),
    default=str(Group.TASK),
    show_default=True,
    help="Whose budget bounds the canaries.",
)
@click.option(
    "--cut",
    type=click.FloatRange(1, LONGEST_CUT),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="For how long Redis is cut off.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan, and do nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def drill(
    steps: tuple[DrillStep, ...], worker: str | None, group: str, cut: float, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Break a running fleet within stated bounds, and say whether it recovered and lost nothing.

    Sends canary turns, kills a worker, cuts Redis off and moves clocks, one step after the other. Prints what it would
    do and asks first. Canaries call no model and need no file in the room; they are erased at the end.
    """
    if as_json and not (yes or dry_run):
        raise click.UsageError("--json cannot ask: give --yes, or --dry-run for the plan alone")
    if worker is not None and DrillStep.KILL not in steps:
        raise click.UsageError("--worker names what the step kill kills: add kill to --only, or leave --worker out")
    settings = command_settings()
    try:
        report = _drill(settings, steps, worker, Group(group), cut, dry_run=dry_run, yes=yes, as_json=as_json)
    except ChordageError as error:
        say(f"chordage: {error}", err=True)
        raise click.exceptions.Exit(max(NOT_RUN, exit_code(error))) from error
    if report is None:
        return
    print_json(report) if as_json else _print(report)
    results = {step.result for step in report.steps}
    failed = VIOLATED if DrillResult.VIOLATED in results else NOT_RUN if DrillResult.NOT_RUN in results else 0
    raise click.exceptions.Exit(failed)


def _drill(
    settings: Settings,
    steps: tuple[DrillStep, ...],
    worker: str | None,
    group: Group,
    cut: float,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> DrillReport | None:
    """None: only the plan was asked for."""
    from chordage.tasks.courier import Courier
    from chordage.workers.app import make_app
    from chordage.workers.drill import game_day

    check_ready_with_redis(settings)
    with open_runtime(settings, with_redis=False) as rt:
        with busy("looking which workers show their presence"):
            workers = game_day.present_workers(rt, settings)
        game_day.check_plan(settings, steps)
        game_day.check_fleet(rt, group, workers)
        target = None if worker is None else game_day.target_of(worker, workers)
        plan = game_day.DrillPlan(steps=steps, group=group, times=game_day.times_of(settings, cut), target=target)
        if dry_run and as_json:
            print_json(_plan_as_json(plan, workers))
        elif not yes or dry_run:
            say_lines(_plan_lines(plan, workers))
        if dry_run:
            return None
        if not yes and not _agrees():
            raise Unavailable("nothing was done: you did not agree")
        day = game_day.GameDay(settings, rt, Courier(make_app(settings)), plan)
        done: list[StepReport] = []
        erased: dict[str, int] | None = None
        try:
            done.extend(day.run(lambda step: say(f"chordage: step {step} begins", err=True)))
        finally:
            try:
                erased = _erase(settings, rt, day.threads_to_erase())
            except ChordageError as error:  # what was found out is worth more
                say(f"chordage: the canaries are not erased, the next drill will do it: {error}", err=True)
        return DrillReport(drill=day.id, group=group.value, steps=tuple(done), erased=erased)


def _agrees() -> bool:
    try:
        return click.confirm("Do it?", err=True)
    except click.Abort:
        return False


def _erase(settings: Settings, rt: Runtime, threads: Sequence[str]) -> dict[str, int]:
    """The canaries of this drill and of those that were killed, as `chordage erase` does."""
    from chordage.orchestrator import stages

    if not threads:
        return {}
    while stages.count_journal(rt):  # what is not counted yet would be missing from the metrics
        pass
    subject = stages.ErasureSubject(threads=tuple(threads), name=prefix(SPACE))
    erased, intents = stages.erase(rt, subject, by=CLI)
    send(settings, intents)
    return dict(erased.rows + Counter({"redis": sum(erase_in_redis(settings, rt, erased, subject.name).values())}))


# What is said before.


def _plan_as_json(plan: DrillPlan, workers: Sequence[HeldWork]) -> dict[str, Any]:
    return {
        "steps": [{"step": step, "bound": plan.bound(step), "what": _what(plan, step)} for step in plan.steps],
        "group": plan.group, "target": plan.target and plan.target.id,
        "workers": [{"worker": one.id, "allows_drills": one.drill} for one in workers],
    }  # fmt: skip


def _plan_lines(plan: DrillPlan, workers: Sequence[HeldWork]) -> list[str]:
    allow = [one.id for one in workers if one.drill]
    return [
        f"A drill on a fleet of {len(workers)} worker processes. Canaries run in group {plan.group}, in its budget.",
        f"Workers that allow themselves to be killed: {', '.join(allow) or 'none'}.",
        *(f"{step}: {_what(plan, step)} Bound: {plan.bound(step):g} s." for step in plan.steps),
        f"Afterwards the threads of agent {AGENT_NAME} are erased. Their events are on the bus and in the metrics.",
    ]


def _what(plan: DrillPlan, step: DrillStep) -> str:
    times = plan.times
    match step:
        case DrillStep.CANARY:
            return "send turns to the fleet; nothing goes wrong."
        case DrillStep.KILL if plan.target is not None:
            held = f"{plan.target.runs} runs and {plan.target.calls} calls"
            return (
                f"kill worker {plan.target.id} with SIGKILL while it holds canaries. What else it holds ({held} on "
                "record now) meets the same: an unsafe call of yours becomes a question."
            )
        case DrillStep.KILL:
            return "start a worker that takes canaries alone, and kill it inside an unsafe call; no worker of yours."
        case DrillStep.REDIS:
            return (
                f"CLIENT PAUSE {times.cut * 1000:g} ALL: this Redis answers no client for {times.cut:g} s, also no "
                "other program that uses it; sentinels may take its master for dead."
            )
        case DrillStep.CLOCK:
            return (
                f"start two workers that take canaries alone, with clocks {times.skew:g} s ahead and behind; no clock "
                "of a machine is moved."
            )


# What is said afterwards.


def _print(report: DrillReport) -> None:
    print_table(COLUMNS, [_row(step) for step in report.steps])
    for step in report.steps:
        say_lines(f"{step.step}: {note}" for note in step.notes)
        for violation in step.violations:
            say(f"{step.step}: {violation.kind}: {violation.text}", fg=COLOURS[DrillResult.VIOLATED])
    if report.erased is not None:
        say(f"drill {report.drill}: {sum(report.erased.values())} rows of its canaries were erased")


def _row(step: StepReport) -> tuple[str, ...]:
    return (
        step.step, step.result, str(step.turns), _seconds(step.median), _seconds(step.worst), _seconds(step.bound),
        str(step.repeated), str(step.unknown),
    )  # fmt: skip


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
