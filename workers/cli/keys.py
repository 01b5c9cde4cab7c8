"""`chordage keys`: make, list and revoke the keys of callers over HTTP, and let people into the console."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from chordage.orchestrator.core.audit import CLI, Audited
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.logins import WebSession
from chordage.workers.cli.context import command_settings, open_store
from chordage.workers.cli.output import json_option, print_json, print_table, say

if TYPE_CHECKING:
    from chordage.config.settings import Settings
    from chordage.orchestrator.core.audit import AuditEntry
    from chordage.orchestrator.views import KeyView

COLUMNS = ("id", "name", "state", "tenant", "scopes", "for", "created", "expires", "used")
_LASTS = re.compile(r"([1-9][0-9]{0,4})([dhm])")
_UNITS = {"d": "days", "h": "hours", "m": "minutes"}


def lasts(_context: click.Context, _option: click.Parameter, value: str | None) -> timedelta | None:
    if value is None:
        return None
    match = _LASTS.fullmatch(value)
    if match is None:
        raise click.BadParameter(f"{value!r} is no time: give days, hours or minutes, such as 90d, 12h or 30m")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


@click.group()
def keys() -> None:
    """Make, list and revoke the keys of callers over HTTP."""


@keys.command()
@click.argument("name")
@click.option(
    "--scope", "scopes", type=click.Choice([str(scope) for scope in KeyScope]), multiple=True, required=True,
    help="What it may do; repeatable.",
)  # fmt: skip
@click.option("--tenant", help="Its turns count for this tenant, and its threads are apart from those of others.")
@click.option("--agent", "agents", multiple=True, help="Only for this agent; repeatable.  [default: all]")
@click.option(
    "--group", "groups", type=click.Choice([str(group) for group in Group]), multiple=True,
    help="Only for this group; repeatable.  [default: all]",
)  # fmt: skip
@click.option("--expires", callback=lasts, help="90d, 12h or 30m from now.  [default: never]")
@click.option("--act-as", is_flag=True, help="It may speak for users, each with threads of its own: Chordage-User.")
@json_option
def create(
    *,
    name: str,
    scopes: tuple[str, ...],
    tenant: str | None,
    agents: tuple[str, ...],
    groups: tuple[str, ...],
    expires: timedelta | None,
    act_as: bool,
    as_json: bool,
) -> None:
    """Make a key. It is printed once, alone on standard output; only a hash of it is stored.

    \b
    submit    send messages            payloads  read texts, arguments and results
    read      read states and counts   decide    answer questions
    operate   cancel, retry, ...       admin     make and revoke keys
    """  # noqa: D301 - click's mark for lines that stay as they are
    from chordage.orchestrator import stages
    from chordage.orchestrator.core.keys import KeyTerms

    settings = command_settings()
    _check_agents(settings, agents)
    now = datetime.now(UTC)
    terms = KeyTerms(
        name=name,
        scopes=frozenset(KeyScope(scope) for scope in scopes),
        tenant=tenant,
        agents=frozenset(agents) or None,
        groups=frozenset(Group(group) for group in groups) or None,
        expires_at=None if expires is None else now + expires,
        act_as=act_as,
    )
    with open_store(settings) as store:
        new = stages.create_key(store, terms, CLI, now)
    print_json({"id": new.key.id, "name": name, "secret": new.text}) if as_json else say(new.text)
    say(f"key {new.key.id} is made; it is shown this once. `chordage keys revoke {new.key.id}` takes it back", err=True)


@keys.command("list")
@json_option
def list_keys(as_json: bool) -> None:
    """List all keys, newest first, also those that were revoked or have expired."""
    from chordage.orchestrator import views

    at_once, now, rows = 1000, datetime.now(UTC), []
    with open_store(command_settings()) as store:
        page = views.keys(store, now=now, limit=at_once)
        rows += page
        while len(page) == at_once:
            page = views.keys(store, now=now, limit=at_once, after=page[-1].id)
            rows += page
    print_json(rows) if as_json else print_table(COLUMNS, [_row(row) for row in rows])


@keys.command()
@click.argument("key_id", metavar="ID")
def revoke(key_id: str) -> None:
    """Revoke a key. Every process of the HTTP server refuses it within five seconds."""
    from chordage.orchestrator import stages

    with open_store(command_settings()) as store:
        key = stages.revoke_key(store, key_id, CLI, datetime.now(UTC))
    say(f"key {key.id} ({key.name}) is revoked; servers refuse it within 5 s")


@keys.command()
@click.option("--key", metavar="ID", help="Only what this key did; or local, cli, celery.")
@click.option("--kind", type=click.Choice([str(kind) for kind in Audited]), help="Only such entries.")
@click.option("--since", callback=lasts, help="90d, 12h or 30m ago and later.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@json_option
def audit(*, key: str | None, kind: str | None, since: timedelta | None, limit: int, as_json: bool) -> None:
    """List who decided, who changed keys and who intervened, newest first."""
    from chordage.orchestrator import views

    with open_store(command_settings()) as store:
        entries = views.audit_page(
            store,
            limit=limit,
            actor=key,
            action=Audited(kind) if kind else None,
            since=None if since is None else datetime.now(UTC) - since,
        ).data
    if as_json:
        print_json(entries)
        return
    rows = [(one.at, _who(one), one.tenant, one.address, one.action.value, one.about, _details(one)) for one in entries]
    print_table(("when", "who", "tenant", "from", "did", "about", "details"), rows, empty="nothing is on record")


def _who(entry: AuditEntry) -> str:
    return entry.actor if entry.user is None else f"{entry.actor}~{entry.user}"


def _details(entry: AuditEntry) -> str | None:
    return "; ".join(f"{name} {value}" for name, value in entry.facts) or None


@keys.command("sessions")
@json_option
def list_sessions(as_json: bool) -> None:
    """List the open sessions of the console, newest first."""
    from chordage.orchestrator import views

    rows, before = list[WebSession](), None
    with open_store(command_settings()) as store:
        while True:
            page = views.session_page(store, datetime.now(UTC), limit=1000, before=before)
            rows += page.data
            if (before := page.next) is None:
                break
    if as_json:
        print_json(rows)
        return
    shown = [(one.id, one.key_id or "link", one.tenant, one.address, one.began_at, one.expires_at) for one in rows]
    print_table(("session", "key", "tenant", "from", "began", "expires"), shown, empty="no session is open")


@keys.command()
@click.argument("session_id", metavar="[SESSION]", required=False)
@click.option("--key", "key_id", metavar="ID", help="All sessions that began with this key.")
@click.option("--all", "everyone", is_flag=True, help="All sessions, also those that began with a link.")
def logout(session_id: str | None, key_id: str | None, everyone: bool) -> None:
    """End sessions of the console. Every process of the HTTP server refuses them within five seconds."""
    from chordage.orchestrator import stages

    if sum((session_id is not None, key_id is not None, everyone)) != 1:
        raise click.UsageError("give a session, --key or --all; `chordage keys sessions` lists them")
    with open_store(command_settings()) as store:
        if session_id is not None:
            stages.end_session(store, session_id, CLI, datetime.now(UTC))
            ended = 1
        else:
            ended = stages.end_sessions(store, CLI, datetime.now(UTC), key_id=key_id)
    say(f"{ended} session{'' if ended == 1 else 's'} ended; servers refuse {'it' if ended == 1 else 'them'} within 5 s")


@keys.command()
def link() -> None:
    """Print a link into the console, for one use within ten minutes. The person who opens it acts as the operator."""
    settings = command_settings()
    say(login_url(settings, url=None))


def login_url(settings: Settings, *, url: str | None) -> str:
    """`url`: of the server; None: as the settings have it."""
    from chordage.orchestrator import stages
    from chordage.orchestrator.api.sessions import LOGIN_PATH
    from chordage.workers.fleet import roles

    with open_store(settings) as store:
        token = stages.make_link(store, datetime.now(UTC))
    return f"{url or roles.web(settings.host, settings.port).url}{LOGIN_PATH}?link={token}"


def _check_agents(settings: Settings, agents: tuple[str, ...]) -> None:
    """A name that no agent has would be noticed by the first request only."""
    from chordage.orchestrator.core.errors import UnknownAgent, UserError, alternatives
    from chordage.workers.bootstrap import room_from

    if not agents:
        return
    try:
        known = room_from(settings).names()
    except UserError:  # the room is not here, or broken: keys can be made all the same
        return
    for agent in agents:
        if agent not in known:
            raise UnknownAgent(f"there is no agent {agent!r} in {settings.room_path}: {alternatives(agent, known)}")


def _row(key: KeyView) -> tuple[object, ...]:
    limits = [*(key.agents or ()), *(key.groups or ())]
    return (
        key.id, key.name, key.state, key.tenant, ",".join(key.scopes), ",".join(limits) or None, key.created_at,
        key.expires_at, key.last_used_at,
    )  # fmt: skip
