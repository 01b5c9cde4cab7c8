"""`chordage simulate`: how a fleet would fare that nobody has yet."""

from __future__ import annotations

from pathlib import Path

import click

from chordage.workers.cli.output import console, json_option, print_json, span


@click.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--database", metavar="URL", help="An empty database to simulate on.  [default: SQLite, in memory]")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Of virtual time.  [default: the file's]")
@json_option
def simulate(*, scenario: Path, database: str | None, seconds: float | None, as_json: bool) -> None:
    """Run the fleet and the arrivals that the file SCENARIO describes, under virtual time.

    Admission, dispatch and ending are the engine's own, on a real database; models, tools, the broker and the waiting
    are made up. See docs/scale.md.
    """
    from chordage.workers.simulate import report, running
    from chordage.workers.simulate.scenario import read

    plan = read(scenario)
    if seconds is not None:
        plan = plan.model_copy(update={"seconds": seconds})
    with console(stderr=True).status("simulating …") as status:

        def tell(now: float, done: int) -> None:
            status.update(f"simulating … {span(now)}, messages come until {span(plan.seconds)}, {done:,} turns done")

        found = running.simulate(plan, database=database, tell=tell)
    print_json(found) if as_json else report.show(found)
