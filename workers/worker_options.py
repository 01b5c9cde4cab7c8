"""Options of `chordage worker` that `celery -A chordage worker` has as well."""

from __future__ import annotations

from pathlib import Path

import click

from chordage.workers.worker_plan import Role


def worker_options() -> tuple[click.Option, ...]:
    return (
        click.Option(
            ("--role",),
            type=click.Choice([role.value for role in Role]),
            default=Role.ALL.value,
            show_default=True,
            help="turns: in threads. tools: in processes. all: both, in threads.",
        ),
        click.Option(("--groups",), metavar="NAMES", help="Only these groups: chat,task."),
        click.Option(("--reserved",), is_flag=True, help="Only for chat, with as many slots as `reserve` says."),
        click.Option(
            ("--ready-file",), type=click.Path(path_type=Path), help="Written when the worker is ready, for probes."
        ),
    )
