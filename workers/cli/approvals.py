"""`chordage inbox`, `approve`, `deny` and `decide`: the calls that wait for a decision, and the decisions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chordage.orchestrator.core.approvals import Why
from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.errors import InvalidDecision
from chordage.orchestrator.core.text import loads_json
from chordage.workers.cli.context import command_settings, open_runtime, open_store, send
from chordage.workers.cli.keys import lasts
from chordage.workers.cli.message import SOURCE
from chordage.workers.cli.output import (
    INTERRUPTED,
    ago,
    expiry,
    fits_without_payload,
    indented,
    json_option,
    print_json,
    print_table,
    say,
    say_lines,
    short,
)

if TYPE_CHECKING:
    from chordage.config.settings import Settings
    from chordage.orchestrator.core.intents import Intent
    from chordage.orchestrator.runtime import Runtime
    from chordage.orchestrator.views import OpenQuestion

COLUMNS = (
    "suspension", "asked", "expires", "why", "agent", "tool", "thread", "arguments", "prompt", "answer", "path", "root",
)  # fmt: skip
EXAMPLE = '[{"id": "ID", "action": "approve", "payload": true}]'
EPILOG = """\
Without CHORDAGE_REDIS_URL and without a running fleet, the run resumes in this process, and the command ends when the
run is done or waits again.

\b
Exit codes:
0    everything is stored
130  interrupted; the decisions that were printed are stored
Any other code: nothing was stored.
1    no such question, or it has another answer; or a service does not answer
2    an answer or an option is wrong
"""


# chordage inbox


@click.group(invoke_without_command=True)
@click.option("--agent", help="Only of this agent.")
@click.option("--thread", "thread_id", metavar="ID", help="Only of this thread.")
@click.option("--run", "run_id", metavar="ID", help="Only of this run and the sub-agents below it.")
@click.option("--root", "root_thread", metavar="THREAD", help="Only of this thread and the sub-agents below it.")
@click.option("--why", type=click.Choice([str(why) for why in Why]), help="Only calls that wait for this reason.")
@click.option("--after", metavar="SUSPENSION", help="Only what was asked after this one: the next page.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@json_option
@click.pass_context
def inbox(
    ctx: click.Context,
    *,
    agent: str | None,
    thread_id: str | None,
    run_id: str | None,
    root_thread: str | None,
    why: str | None,
    after: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List the calls that wait for a decision, over all threads, oldest first.

    `chordage approve ID` and `chordage deny ID` decide. The first letters of a run or thread are enough.
    """
    if ctx.invoked_subcommand is not None:
        return
    from chordage.orchestrator import views

    with open_store(command_settings()) as store:
        questions = views.inbox(
            store,
            limit=limit,
            agent=agent,
            thread_id=thread_id and views.full_id(store, views.IdKind.THREAD, thread_id),
            root_run=run_id and views.full_id(store, views.IdKind.RUN, run_id),
            root_thread=root_thread and views.full_id(store, views.IdKind.THREAD, root_thread),
            why=Why(why) if why else None,
            after=after,
        )
    if as_json:
        print_json(questions)
    elif questions and sys.stdout.isatty():  # a question is too long for a row of a table
        for number, question in enumerate(questions):
            say_lines([*([""] if number else []), *_question_lines(question)], mark={1 if number else 0: "cyan"})
    else:
        print_table(COLUMNS, [_row(question) for question in questions], empty="no call waits for a decision")


@inbox.command()
@click.argument("question")
@click.option("--expires", callback=lasts, default="1h", show_default=True, help="30m, 12h or 7d from now.")
@click.option("--url", metavar="URL", help="Of the server, as people reach it.  [default: as the settings have it]")
def link(question: str, expires: timedelta, url: str | None) -> None:
    """Print an address at which a person may answer QUESTION once, without a key: it shows exactly what would
    run. It ends with the question at the latest.
    """
    from chordage.orchestrator import stages
    from chordage.orchestrator.api.inbox import LINKED_PATH
    from chordage.orchestrator.gateways.ids import Ids
    from chordage.workers.fleet import roles

    settings = command_settings()
    with open_store(settings) as store:
        new = stages.make_question_link(
            store,
            question,
            by=CLI,
            now=datetime.now(UTC),
            secret=stages.session_secret(store),
            link_id=Ids()(),
            lasts=expires,
        )
    base = url or roles.web(settings.host, settings.port).url or ""
    say(f"{base.rstrip('/')}{LINKED_PATH}{new.token}")
    say(f"it works once, until {new.link.expires_at:%Y-%m-%d %H:%M} UTC", err=True)


def _row(question: OpenQuestion) -> tuple[object, ...]:
    from chordage.orchestrator.views import answers

    return (
        question.id, question.created_at, "overdue" if question.overdue else question.expires_at, question.why,
        question.agent, question.tool, question.thread_id, short(question.arguments), question.prompt,
        answers(question.schema), question.path, question.root_thread,
    )  # fmt: skip


def _question_lines(question: OpenQuestion) -> list[str]:
    from chordage.orchestrator.views import answers

    lines = [
        f"{question.id}  {question.why.value}, asked {ago(question.created_at)}{expiry(question)}",
        f"  {question.agent} wants {question.tool}  {short(question.arguments)}",
        *indented(question.prompt),
        f"  thread {question.thread_id}, run {question.run_id}",
    ]
    if question.root_thread != question.thread_id:
        lines.append(f"  for {question.path}, thread {question.root_thread}")
    if question.schema is not None:
        plain = "approve it, or " if fits_without_payload(question.schema) else ""
        lines.append(f"  {plain}answer with --payload: {answers(question.schema)}")
    return lines


# chordage approve, deny, decide


@click.command(epilog=EPILOG)
@click.argument("targets", metavar="ID...", nargs=-1, required=True)
@click.option("--payload", metavar="JSON", help="The answer.  [default: true]")
@click.option("--args", "arguments", metavar="JSON", help="Run the call with these arguments instead; for one ID.")
@click.option("--reason", help="Stored and shown with the decision.")
@click.option("--key", metavar="KEY", help="Repeating a decision with the same key changes nothing.")
@json_option
def approve(targets: tuple[str, ...], payload: str | None, arguments: str | None, as_json: bool, **more: Any) -> None:
    """Approve waiting calls: all of them, or none. ID is what `chordage inbox` lists, or the id of the call.

    A call that may or may not have taken effect needs an answer: --payload '{"answer": "retry"}', "result" with the
    result, or "failed".
    """
    if arguments is not None and len(targets) > 1:
        raise click.UsageError("give one ID with --args: each call has arguments of its own")
    edited_args = None
    if arguments is not None:
        edited_args = _parse(arguments, "--args", "edited_args")
        if not isinstance(edited_args, dict):
            example = '{"n": 7}'
            raise InvalidDecision(f"give --args as a JSON object, such as {example}, not {arguments:.40}", field="args")
    answer = None if payload is None else _parse(payload, "--payload", "payload")
    fields = {"action": "resume", "edited_args": edited_args, "reason": more["reason"], "decision_key": more["key"]}
    _decide(
        lambda rt: [
            {"target": target, **fields, "payload": _plain_yes(rt, target) if payload is None else answer}
            for target in targets
        ],
        as_json=as_json,
    )


def _plain_yes(rt: Runtime, target: str) -> bool | None:
    """True, or null if the schema of the question accepts only that."""
    from chordage.orchestrator import views
    from chordage.orchestrator.gateways.schemas import complaint_about

    if views.are_for_callers(rt.store, [target]):
        problem = f"the caller carries {target} out, and the payload is the result of the call: give it with --payload"
        raise InvalidDecision(f"{problem}, or deny the call", field="payload")
    schema = views.schema_asked(rt.store, target)
    only_null = (
        schema is not None and complaint_about(True, schema) is not None and complaint_about(None, schema) is None
    )
    return None if only_null else True


@click.command(epilog=EPILOG)
@click.argument("targets", metavar="ID...", nargs=-1, required=True)
@click.option("--reason", help="Passed to the model.")
@click.option("--key", metavar="KEY", help="Repeating a decision with the same key changes nothing.")
@json_option
def deny(targets: tuple[str, ...], reason: str | None, key: str | None, as_json: bool) -> None:
    """Deny waiting calls: all of them, or none. ID is what `chordage inbox` lists, or the id of the call.

    The model reads that the call was denied, with the reason, and the run resumes.
    """
    fields = {"action": "cancel", "reason": reason, "decision_key": key}
    _decide(lambda _: [{"target": target, **fields} for target in targets], as_json=as_json)


@click.command(epilog=f"For example:\n\n\b\n{EXAMPLE}\n\n{EPILOG}")
@click.argument("file", metavar="[FILE|-]", default="-")
@json_option
def decide(file: str, as_json: bool) -> None:
    """Store a JSON list of decisions, all of them or none.

    Each is an object: target (the id of a suspension or a call; "id" is accepted too), action (resume or approve,
    cancel or deny), and optionally payload, edited_args, reason, decision_key.
    """
    try:
        text = (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode()
    except OSError as error:
        raise InvalidDecision(f"give a file that can be read, or -: {file}: {error.strerror}", field="file") from error
    except UnicodeDecodeError as error:
        message = f"give the decisions in UTF-8: byte {error.start} is not"
        raise InvalidDecision(message, field="file") from error
    fields = _parse(text, "the decisions", "decisions")
    if not isinstance(fields, list):
        raise InvalidDecision(f"give a list of decisions, such as {EXAMPLE}", field="decisions")
    _decide(lambda _: fields, as_json=as_json)


def _parse(text: str, what: str, field: str) -> Any:
    try:
        return loads_json(text)
    except (ValueError, RecursionError) as error:
        raise InvalidDecision(f"give {what} as JSON: {error}", field=field) from error


def _decide(fields_of: Callable[[Runtime], list[dict[str, Any]]], *, as_json: bool) -> None:
    """Store the decisions, print them, and resume what waited for them: by the fleet, or here without one."""
    from chordage.orchestrator import stages
    from chordage.tasks.schema import decisions_from

    settings = command_settings()
    with open_runtime(settings) as rt:
        requests = decisions_from(fields_of(rt))
        stored, intents = stages.decide(rt, requests, source=SOURCE)
        if as_json:
            print_json(stored)
        else:
            for request, decision in zip(requests, stored, strict=True):
                before = " before, with the same answer" if decision.duplicate else ""
                ids = f"suspension {decision.suspension_id}, call {decision.call_id}, run {decision.run_id}"
                say(f"{request.action.verdict}{before}: {ids}")
        send(settings, intents)
        if settings.redis is None and intents:
            _resume_here(settings, rt, intents)


def _resume_here(settings: Settings, rt: Runtime, intents: Sequence[Intent]) -> None:
    from chordage.workers import local

    say("chordage: there is no fleet, so the run resumes in this process", err=True)
    try:
        with local.heartbeat(rt, settings.beat):
            local.interruptible(lambda: local.carry_out(rt, intents))
    except KeyboardInterrupt:
        local.abort_work(rt)
        say("\nchordage: the decision is stored; `chordage dev` resumes the run", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
