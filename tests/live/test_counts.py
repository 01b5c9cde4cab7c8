"""What a turn costs in exact numbers, with real workers. They are the same on every machine, so they are held here.

Times are not: `chordage bench` measures them.
"""

from __future__ import annotations

import functools
import uuid
from contextlib import contextmanager
from itertools import product

import pytest

from chordage.benchmarks import workload
from chordage.benchmarks.contenders import AS_MEANT, Conditions, Engine, Scenario
from chordage.benchmarks.counting import count_work
from chordage.benchmarks.servers import EMBEDDED, running_servers, running_workers
from chordage.benchmarks.workload import TurnShape
from chordage.orchestrator.core.agent import Placement
from chordage.orchestrator.core.errors import ConfigError
from support import skips
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

SHAPES = [TurnShape(rounds=rounds, calls=calls) for rounds, calls in product((1, 2, 3), (1, 4))]
of_each_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.rounds}-rounds-of-{shape.calls}")


class Fleet:
    """The engine with its workers on servers of its own."""

    def __init__(self, engine, conditions):
        self.engine = engine
        self.conditions = conditions
        self._counted = {}

    def count(self, shape, placement="spread"):
        """One turn of that shape, on a thread of its own, whose calls run there."""
        if (shape, placement) not in self._counted:
            workload.write_script(self.engine.room, shape)
            self._counted[shape, placement] = self.settled(
                lambda: functools.partial(self.engine.turn, str(uuid.uuid4()), placement)
            )
        return self._counted[shape, placement]

    def settled(self, turn):
        """What two counts agree on. In one of them a worker may load its scripts, or tell the others how long its tools
        take, and on a busy machine the last commands of a turn may come when it was counted.
        """
        seen = []
        for _ in range(10):
            found = count_work(self.engine, self.conditions, turn(), times=1)
            if (numbers := (found.messages, found.redis_commands, found.commits)) in seen:
                return found
            seen.append(numbers)
        pytest.fail(f"no two counts of messages, commands and commits agree: {seen}")

    def least(self, turn, *, times, counts):
        """Of so many counts: now and then a worker tells the others how long its tools take."""
        counts = (count_work(self.engine, self.conditions, turn(), times=times) for _ in range(counts))
        return min(counts, key=lambda count: count.commits or 0)


def write_agents(room):
    """One for each placement; that of the bench is `spread`."""
    text = (room / "agent.toml").read_text()
    for placement in Placement:
        agent = f'placement = "{placement}"\n{text}'
        (room / "agents" / f"{placement}.toml").write_text(agent.replace(f'"{workload.WORKER}"', f'"{placement}"'))
    (room / "agent.toml").write_text(f'placement = "spread"\n{text}')


@contextmanager
def running_fleet(database, scenario=AS_MEANT, *, threads=0):
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CHORDAGE_SWEEP", "600")  # rescue looks at the database whether or not there are turns
        environment.setenv("CHORDAGE_GONE_AFTER", "3600")  # workers show that they live whether or not there are turns
        environment.setenv("CHORDAGE_PRESENCE", "600")
        environment.setenv("CHORDAGE_PROJECT", "600")  # the bus is copied for all turns of a second together
        try:
            started = running_servers(database=EMBEDDED if database == "postgres" else None, redis_url=None)
            on = started.__enter__()
        except ConfigError as error:
            skips.unavailable(str(error))
        try:
            conditions = Conditions(
                redis_url=on.redis_url,
                database_url=on.database_url,
                folder=on.folder,
                shape=TurnShape(),
                threads=threads,
            )
            engine = Engine(conditions, scenario)
            write_agents(engine.room)
            with running_workers([engine], on):
                workload.write_script(engine.room, TurnShape(rounds=3))
                for number in range(8):  # every process has connected, loaded its scripts and met its statements
                    for placement in Placement:
                        engine.turn(f"warm-up:{number}:{placement}", placement)
                yield Fleet(engine, conditions)
        finally:
            started.__exit__(None, None, None)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def fleet(request):
    with running_fleet(request.param) as running:
        yield running


@of_each_shape
def test_round_costs_a_message_a_call_and_one_more(fleet, shape):
    found = fleet.count(shape)

    to_start = 1
    assert found.messages == to_start + shape.rounds * (shape.calls + 1)


def test_round_costs_a_message_a_call_where_one_worker_does_all_in_threads():
    """The header that returns last carries the round on: no message is the body."""
    shape = TurnShape(rounds=2)
    with running_fleet("sqlite", Scenario(name="all", about="in threads"), threads=4) as fleet:
        found = fleet.count(shape)

    to_start = 1
    assert found.messages == to_start + shape.rounds * shape.calls


@of_each_shape
def test_turn_commits_three_times_and_once_a_round_and_once_a_call(fleet, shape):
    found = fleet.count(shape)

    assert found.commits <= 3 + shape.rounds * (1 + shape.calls)


def commands_of(shape, *, messages, pushes, counted=0):
    """A message: BRPOP, two to record that it was delivered, two that it was acknowledged. A round is one LPUSH."""
    its_client_waits = 2
    lock = 2 + (shape.rounds - 1)  # taken, released, and extended where a round follows another
    marks_of_model_calls = shape.rounds + 1
    turn_is_done = 1
    return 5 * messages + pushes + its_client_waits + lock + marks_of_model_calls + turn_is_done + counted


@of_each_shape
def test_turn_asks_redis_for_five_commands_a_message_and_few_more(fleet, shape):
    """Nobody watches its runs."""
    spread, here = fleet.count(shape), fleet.count(shape, "here")

    counted = shape.rounds * shape.calls if shape.calls > 1 else 0
    messages, pushes = 1 + shape.rounds * (shape.calls + 1), 1 + shape.rounds * 2
    assert spread.redis_commands == commands_of(shape, messages=messages, pushes=pushes, counted=counted)
    assert here.redis_commands == commands_of(shape, messages=1, pushes=1)


@of_each_shape
def test_round_that_stays_costs_one_commit_and_no_message(fleet, shape):
    """Its calls are pure: they are recorded with the reply that asked for them."""
    found = fleet.count(shape, "here")

    to_start = 1
    assert (found.messages, found.commits) == (to_start, 3 + shape.rounds)


@of_each_shape
def test_round_together_costs_two_commits_and_two_messages(fleet, shape):
    found = fleet.count(shape, "together")

    to_start = 1
    assert (found.messages, found.commits) == (to_start + 2 * shape.rounds, 3 + 2 * shape.rounds)


def test_short_tools_stay_by_themselves(fleet):
    """Once a heartbeat of the workers has told the others how long they take."""
    workload.write_script(fleet.engine.room, TurnShape())

    def stay():
        turn = functools.partial(fleet.engine.turn, str(uuid.uuid4()), Placement.AUTO)
        return count_work(fleet.engine, fleet.conditions, turn, times=1).messages == 1

    until(stay, "a round without messages")


@pytest.mark.parametrize("fleet", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
@of_each_shape
def test_transactions_that_write_hold_nine_statements_and_three_a_round_and_one_a_call(fleet, shape):
    """To admit 2, to start 4, to end 3. SQLite keeps no count, but the code is the same."""
    found = fleet.count(shape)

    assert found.write_statements is not None
    assert found.write_statements <= 9 + shape.rounds * (3 + shape.calls)


def with_history(fleet, messages):
    thread = str(uuid.uuid4())
    fleet.engine.remember(thread, messages)
    return fleet.least(lambda: functools.partial(fleet.engine.turn, thread), times=3, counts=4)


def test_nothing_but_the_prompt_grows_with_a_history_of_a_thousand_messages(fleet):
    workload.write_script(fleet.engine.room, TurnShape())
    short, long = (with_history(fleet, messages) for messages in (10, 1000))

    assert long.messages == short.messages
    assert long.commits == short.commits
    assert long.write_statements == short.write_statements
    batches = 5  # news that happen to meet share a trip and an EXPIRE
    assert long.redis_commands == pytest.approx(short.redis_commands, abs=batches)
    assert long.redis_bytes == pytest.approx(short.redis_bytes, rel=0.02)
    assert long.sql_bytes <= 1.25 * short.sql_bytes  # the pages of an index may split
