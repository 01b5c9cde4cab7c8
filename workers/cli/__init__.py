"""The `chordage` command. A subcommand is imported when it is used, so that `chordage --help` answers at once."""

from __future__ import annotations

import importlib
from typing import Any

import click

# As in `chordage --help`: the module of each command, and its summary. The summary is here so that listing the commands
# imports none of them.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "First steps and rooms": {
        "demo": ("demo", "See a turn run over several worker processes. Needs no API key, no service, no folder."),
        "init": ("init", "Write an example room into this folder, to start from."),
        "check": ("check", "List everything that is wrong with this room and its settings."),
        "schema": ("schema", "Print the JSON Schema of a file of the room, for your editor."),
        "mcp": ("mcp", "Connect to the room's MCP servers, and list their tools."),
        "invoke": ("invoke", "Run one turn here and print the answer. Needs no running fleet."),
    },
    "A fleet on this machine": {
        "dev": ("fleet", "Start everything on this machine: Redis, workers, beat and the HTTP server."),
        "run": ("fleet", "Run HTTP, polling, schedules and workers in the foreground."),
        "start": ("fleet", "Start what `run` runs, in the background."),
        "stop": ("fleet", "Stop the fleet of this folder."),
        "status": ("status", "Show this folder's fleet and its health."),
    },
    "Turns": {
        "submit": ("submit", "Send a message to the fleet; it becomes a turn."),
        "turns": ("turns", "List turns."),
        "threads": ("turns", "List threads."),
        "show": ("show", "Show a turn, a run or a thread."),
        "trace": ("trace", "Show the path of one message, from its arrival to its end."),
        "tail": ("tail", "Print what happens to a turn, until its end."),
        "why": ("why", "Say why something waits, who holds it, and what changes it."),
        "cancel": ("turns", "Cancel a turn."),
        "retry": ("turns", "Send the message of a turn again that ended without an answer."),
        "steer": ("turns", "Send a message into a run that is at work."),
        "compact": ("turns", "Have the older part of a thread summarised."),
    },
    "Approvals": {
        "inbox": ("approvals", "List the calls that wait for a decision."),
        "approve": ("approvals", "Approve waiting calls."),
        "deny": ("approvals", "Deny waiting calls."),
        "decide": ("approvals", "Store a list of decisions, all of them or none."),
    },
    "Tasks, channels, webhooks and deliveries": {
        "pulse": ("pulse", "List tasks, chores and the will, and what is wrong with them; or run one now."),
        "channels": ("channels", "List channels, how far each was read, and what was refused."),
        "hooks": ("webhooks", "List the webhooks of the room; `hooks send` tries one."),
        "deliveries": ("deliveries", "List outgoing replies, and send dead letters again."),
        "bus": ("bus", "Show how far behind the streams in Redis are, or rebuild them."),
    },
    "Single processes": {
        "worker": ("processes", "Start one worker."),
        "web": ("processes", "Start the HTTP server."),
        "poll": ("processes", "Fetch messages from the channels of channels.toml."),
        "beat": ("processes", "Start the scheduler of periodic work."),
        "flower": ("processes", "Start Flower, a web page that monitors the workers."),
    },
    "Operation": {
        "doctor": ("doctor", "Find what is wrong with the fleet, and say what cures it."),
        "agents": ("agents", "Show the versions of agents, and the open runs that began with older ones."),
        "groups": ("groups", "Show budgets, and what runs and waits within them; set a budget."),
        "keys": ("keys", "Make, list and revoke the keys of callers over HTTP."),
        "migrate": ("migrate", "Bring the database to the schema of this version."),
        "prune": ("prune", "Delete turns that ended long ago."),
        "encrypt": ("encrypt", "Encrypt what is stored with the current key."),
        "erase": ("erase", "Delete all that is stored of a thread or a sender."),
        "drill": ("drill", "Break the fleet within stated bounds, and see that it recovers."),
        "simulate": ("chordage.workers.simulate.command", "Predict how a fleet would cope with a given load."),
        "bench": ("bench", "Measure what the engine costs."),
    },
}
COMMANDS = {name: command for section in SECTIONS.values() for name, command in section.items()}


class Commands(click.Group):
    """Command X is the object `X` of its module."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module if "." in module else f"{__name__}.{module}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            ctx.fail(_unknown(name))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        for heading, commands in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, summary) for name, (_, summary) in commands.items()], col_max=12)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            from chordage.workers.cli.output import INTERRUPTED, say

            say("chordage: interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except Exception as error:
            from chordage.workers.cli.output import report_error, show_faults_inert

            report_error(error)
            show_faults_inert()
            raise


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, COMMANDS, n=1)
    return f"there is no command {name!r}" + (f"; did you mean {close[0]}?" if close else "")


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import version

        from chordage.workers.cli.output import say

        say(f"chordage {version('chordage')}")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def main() -> None:
    """A durable runtime for LLM-agent turns on Celery.

    New here? Run `chordage demo`. Settings come from CHORDAGE_* variables and from chordage.toml.
    """
