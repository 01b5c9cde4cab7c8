"""The API against its own OpenAPI schema, by machine."""

from __future__ import annotations

import subprocess
import sysconfig
from functools import partial
from pathlib import Path

import pytest

from chordage.config.settings import Settings
from chordage.orchestrator import views
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.store.database import Store
from chordage.tasks.accepting import accept, decide
from chordage.workers import local
from chordage.workers.bootstrap import runtime_from
from support.web_server import served, server_with, with_database

pytestmark = pytest.mark.redis


class Nobody:
    """A courier that sends nothing."""

    def send(self, intents: object) -> None: ...


@pytest.mark.slow
def test_the_api_keeps_what_its_schema_promises(settings, database_url, tmp_path):
    """Schemathesis with a fixed seed. A turn that is waited for is carried out on the spot, so that 200 is seen too.

    Left out: that everything the schema allows is accepted. Rules between fields are no part of the schema.
    """
    settings = with_database(settings, database_url)
    rt = runtime_from(settings, with_redis=False)

    def wait(turn_id: str, _seconds: float, _gave_up: object) -> views.TurnView:
        local.carry_out(rt, local.begin(rt, views.turn(rt.store, turn_id)))
        turn = views.turn(rt.store, turn_id)
        if turn.status is not TurnStatus.DONE:
            raise Unavailable("it is not due yet")
        return turn

    app = server_with(
        accept=partial(accept, rt, Nobody()),
        turn=partial(views.turn, rt.store),
        wait=wait,
        inbox=partial(views.inbox, rt.store),
        decide=partial(decide, rt, Nobody(), source="test", space=None),
        result=lambda call_id, offset, limit: views.result(rt.store, call_id, offset=offset, limit=limit),
        bounds=rt.bounds,
    )
    with served(app) as client:
        program = Path(sysconfig.get_path("scripts"), "schemathesis")
        bounds = ["--seed", "1", "--max-examples", "15", "--phases", "coverage,fuzzing"]
        options = [*bounds, "--exclude-checks", "positive_data_acceptance", "--no-color"]
        command = [program, "run", f"{client.base_url}/openapi.json", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    rt.store.close()

    assert done.returncode == 0, done.stdout + done.stderr
    assert views_seen(settings) > 10, "it has come past the door"


def views_seen(settings: Settings) -> int:
    store = Store(settings.database)
    seen = len(views.turns(store, limit=1000))
    store.close()
    return seen
