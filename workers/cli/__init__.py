"""The `chordage` command. A subcommand is imported when it is used, so that `chordage --help` answers at once."""

from __future__ import annotations

import importlib
from typing import Any

import click

# In the order people meet them. The summary stands here so that listing the commands imports none of them.
COMMANDS: dict[str, str] = {
    "demo": "See a turn run over several worker processes. Needs no API key, no service, no folder.",
    "init": "Put an example room into this folder, to start from.",
    "check": "Name everything that is wrong with this room and its settings.",
    "dev": "Start everything on this machine: Redis, workers, beat and the HTTP server.",
    "run": "Run runtime loops and their workers, until Ctrl-C.",
    "start": "Start the same in the background.",
    "stop": "Stop what runs on this folder.",
    "status": "Say what runs on this folder, and how it is.",
    "invoke": "Carry one turn out and print the answer. Needs no running fleet.",
    "submit": "Hand a message to the fleet; it becomes a turn.",
    "turns": "List turns.",
    "threads": "List threads.",
    "groups": "Show budgets, and what runs and waits within them; set a budget.",
    "pulse": "List tasks, chores and the will, and what is wrong with them; or run one now.",
    "show": "Show a turn, a run or a thread.",
    "trace": "Show the path of one message, from its arrival to its end.",
    "inbox": "List the calls that wait for a decision.",
    "approve": "Let calls that wait go on.",
    "deny": "Turn calls that wait down.",
    "decide": "Store a list of decisions, all of them or none.",
    "cancel": "Cancel a turn.",
    "deliveries": "List the replies that leave, and send dead letters again.",
    "bus": "Show how far the streams in Redis are, or build them anew.",
    "compact": "Have the older part of a thread summed up.",
    "worker": "Start one worker.",
    "web": "Start the HTTP server.",
    "poll": "Fetch messages from the channels of channels.toml.",
    "channels": "List channels, how far each was read, and what was refused.",
    "beat": "Start the clock that sends periodic work.",
    "flower": "Start Flower, a web page that watches the workers.",
    "hooks": "List the web hooks of the room; `hooks send` tries one.",
    "mcp": "Connect to the room's MCP servers, and list their tools.",
    "migrate": "Bring the database to the schema of this version.",
    "bench": "Measure what the engine costs.",
    "simulate": "See how a fleet would fare that nobody has yet.",
}
INTERRUPTED = 130  # what a shell says of somebody who was ended by Ctrl-C
ELSEWHERE = {  # with all that they measure
    "simulate": "chordage.workers.simulate.command",
}


class Commands(click.Group):
    """Subcommand X is the object `X` in the module of that name in this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(ELSEWHERE.get(cmd_name, f"{__name__}.{cmd_name}"))
        command = getattr(module, cmd_name)
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
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            from chordage.workers.cli.output import say

            say("chordage: interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except Exception as error:
            from chordage.workers.cli import failing
            from chordage.workers.cli.output import show_faults_inert

            failing.tell(error)
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
