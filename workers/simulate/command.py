"""`chordage simulate`: how a fleet would fare that nobody has yet."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from chordage.workers.cli.output import console, json_option, print_json, say, span

TOLD_EVERY = 30.0  # seconds, where no terminal shows it all the time
SURE = 5.0  # seconds after which one may say how long it takes


@click.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--database", metavar="URL", help="An empty database to simulate on.  [default: SQLite, in memory]")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Of virtual time.  [default: the file's]")
@json_option
def simulate(*, scenario: Path, database: str | None, seconds: float | None, as_json: bool) -> None:
    """Run the fleet and the arrivals that the file SCENARIO describes, under virtual time.

    Admission, dispatch and ending are the engine's own, on a real database; models, tools, the broker and the waiting
    are made up. See docs/how-to/scale.md.
    """
    from chordage.workers.simulate import report, running
    from chordage.workers.simulate.scenario import read

    plan = read(scenario)
    if seconds is not None:
        plan = plan.model_copy(update={"seconds": seconds})
    with console(stderr=True).status("simulating …") as status:
        began = last = time.monotonic()

        def tell(now: float, done: int) -> None:
            nonlocal last
            taken = time.monotonic() - began
            told = f"simulating … {progress(now, plan.seconds, done, taken)}"
            status.update(told)
            if not sys.stderr.isatty() and time.monotonic() - last >= TOLD_EVERY:
                last = time.monotonic()
                say(told, err=True)

        found = running.simulate(plan, database=database, tell=tell)
    print_json(found) if as_json else report.show(found)


def progress(now: float, seconds: float, done: int, taken: float) -> str:
    """How far it is, and how long it may still take: what is left of a day may be busier than what there was."""
    share = min(1.0, now / seconds)
    told = f"{span(now)} of {span(seconds)} ({share:.0%}), {done:,} turns done, {span(taken)} so far"
    if share >= 1:
        return f"{told}; what is left is worked off"
    return f"{told}, about {span(taken / share - taken)} to go" if share > 0 and taken >= SURE else told
