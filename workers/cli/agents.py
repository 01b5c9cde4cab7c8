"""`chordage agents`: the agents of the room, the versions that the fleet uses, and open runs that began with others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chordage.orchestrator.core.text import counted
from chordage.workers.cli.context import command_settings, open_runtime
from chordage.workers.cli.output import json_option, print_json, print_table, say, say_lines

if TYPE_CHECKING:
    from chordage.orchestrator.views.agents import AgentDiff, AgentLine, AgentView

COLUMNS = ("agent", "version here", "in use", "changed", "open runs", "on old versions", "oldest of these")
OF_ONE = ("version", "first used", "by", "processes", "open runs", "oldest", "since")


@click.command()
@click.argument("name", required=False)
@click.option("--diff", nargs=2, metavar="OLD NEW", help="How two versions differ, line by line.")
@click.option(
    "--adopt", is_flag=True, help="Open runs of NAME continue with the version here, whatever they began with."
)
@json_option
def agents(name: str | None, diff: tuple[str, str] | None, adopt: bool, as_json: bool) -> None:
    """List the agents with the versions that the fleet uses, or show the versions of one.

    A version is what decides how an agent behaves: its file, its instructions, the schemas and effects of its tools.
    OLD and NEW are digests, or the first characters of them.

    A run ends with the version it began with, unless its agent says `when_changed = "follow"`. After a mistake in a
    version, `--adopt` moves the runs that began with it.
    """
    from chordage.orchestrator import stages, views
    from chordage.orchestrator.core.audit import CLI
    from chordage.orchestrator.gateways.room.agents import Room

    if diff is not None and name is None:
        raise click.UsageError("name the agent whose versions are to be compared: chordage agents NAME --diff OLD NEW")
    if adopt and (name is None or diff is not None):
        raise click.UsageError("name the agent whose open runs are meant: chordage agents NAME --adopt")
    with open_runtime(command_settings(), with_redis=False) as rt:
        room = rt.agents
        assert isinstance(room, Room)
        if name is not None and adopt:
            _show_adopted(name, stages.adopt_version(rt, name, by=CLI), as_json=as_json)
        elif name is not None and diff is not None:
            _show_diff(views.agent_diff(rt.store, name, *diff), as_json=as_json)
        elif name is not None:
            _show_agent(views.agent(room, rt.tools, name, room.broken, store=rt.store), as_json=as_json)
        else:
            _show_all(views.agents(room, room.broken, views.fleet_versions(rt.store)), as_json=as_json)


def _show_all(lines: list[AgentLine], *, as_json: bool) -> None:
    if as_json:
        print_json(lines)
        return
    rows = [
        (
            line.name, line.fault or _digest(line.digest) or "not known here", _in_use(line), line.changed_at,
            line.open_runs, line.open_runs_on_old, line.oldest_on_old,
        )
        for line in lines
    ]  # fmt: skip
    print_table(COLUMNS, rows)


def _in_use(line: AgentLine) -> str | None:
    return ", ".join(str(_digest(digest)) for digest in line.in_use or ()) or None


def _digest(digest: str | None) -> str | None:
    from chordage.orchestrator.core.agent_versions import SHOWN

    return digest and digest[:SHOWN]


def _show_agent(view: AgentView, *, as_json: bool) -> None:
    if as_json:
        print_json(view)
        return
    say(f"{view.name}: version {_digest(view.digest) or 'not known'} here{f' ({view.fault})' if view.fault else ''}")
    rows = [
        (
            f"{_digest(one.digest)}{' (old)' if one.is_old else ''}", one.first_seen_at or "not on record",
            one.first_seen_by, len(one.processes), one.open_runs, one.oldest_run, one.oldest_run_at,
        )
        for one in view.versions or ()
    ]  # fmt: skip
    print_table(OF_ONE, rows, empty="no process has used it yet")
    in_use = [one for one in view.versions or () if one.processes]
    if len(in_use) > 1:
        say("processes use different versions of it:")
        for one in in_use:
            say(f"  {_digest(one.digest)}  {', '.join(one.processes)}")
    if view.open_runs_on_unknown:
        say(f"{view.open_runs_on_unknown} open runs started before versions were recorded")


def _show_adopted(name: str, moved: dict[str, int], *, as_json: bool) -> None:
    if as_json:
        print_json({"agent": name, "runs": sum(moved.values()), "from": moved})
        return
    say(f"from their next step, the version here is that of {counted(sum(moved.values()), 'open run')} of {name}")
    for digest, number in sorted(moved.items()):
        say(f"  {number} of version {_digest(digest) or 'not known'}")


def _show_diff(diff: AgentDiff, *, as_json: bool) -> None:
    if as_json:
        print_json(diff)
    elif diff.lines:
        say_lines(line.text for line in diff.lines)
    else:
        say("the two are the same")
