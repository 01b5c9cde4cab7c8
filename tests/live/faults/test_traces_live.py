"""The trace of a run whose processes all died in its middle, made when nothing runs any more; and a collector of it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from support.invariants import check_all
from support.rig import Plan, Rig
from support.span_truth import check_trace, spans_in, trace_of
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LEAD = """
- tool_calls:
    - {name: held_up, arguments: {who: a}}
    - {name: held_up, arguments: {who: b}}
    - {name: ask_scout, arguments: {message: go}}
- tool_calls:
    - {name: idempotent, arguments: {who: c}}
    - {name: pure, arguments: {who: d}}
- text: "all of it"
"""
SCOUT = """
- tool_calls: [{name: pure, arguments: {who: e}}]
- text: "found"
"""


def the_agents(rig: Rig) -> None:
    rig.agent("lead", "scripted:lead.yaml", LEAD)
    rig.agent("scout", "scripted:scout.yaml", SCOUT)
    with (rig.room / "agents" / "lead.toml").open("a") as file:
        file.write('agents = ["scout"]\n')


def a_fleet(rig: Rig) -> None:
    rig.worker("turns", "--role", "turns", "--concurrency", "2")
    rig.worker("tools1", "--role", "tools", "--concurrency", "1")
    rig.worker("tools2", "--role", "tools", "--concurrency", "1")
    rig.ready()


def begun(rig: Rig) -> set[str]:
    return {row["worker"] for row in rig.rows("calls", status="running") if row["worker"]}


@pytest.mark.postgres
def test_trace_of_a_run_that_lost_every_process_is_one_tree_that_equals_the_rows(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("postgres"), lease=30, beat=1)
    the_agents(rig)
    a_fleet(rig)
    sent = {"text": Plan(id="deep").text, "thread_id": "t", "agent": "lead"}
    turn = rig.app.send_task(
        "turns.submit", kwargs=sent, queue="chat", headers={"traceparent": TRACEPARENT}
    ).get(timeout=90)  # fmt: skip
    until(lambda: len(begun(rig)) == 2, "both workers of tools are on record with a call")
    for worker in rig.workers.values():
        worker.kill()
    rig.broker.kill()
    root = rig.row("turns", id=turn)["run_id"]
    in_the_middle = check_trace(rig.runtime.store, rig.rows, root)
    assert "chordage.open" in in_the_middle[0].of

    (rig.room / "gate").touch()
    rig.broker.start()
    rig.restart_the_dead()
    rig.wait_until_done()
    for worker in rig.workers.values():
        worker.kill()
    rig.broker.kill()

    found = check_trace(rig.runtime.store, rig.rows, root)
    check_all(rig.runtime.store)
    once, twice = (_printed(rig, turn) for _ in range(2))
    assert once == twice == trace_of(rig.runtime.store, root), "the same bytes, by a process of their own"
    names = [span["name"] for span in found]
    assert names.count("chat lead.yaml") == 3
    assert names.count("invoke_agent scout") == 1
    assert names.count("worker_lost") >= 2
    tools = {span.of.get("chordage.worker") for span in found if span.operation == "execute_tool"} - {None}
    lost = {span.of["chordage.worker"] for span in found if span["name"] == "worker_lost"}
    assert len(tools) >= 2
    assert len(lost) == 2
    assert found[0]["links"][0]["spanId"] == TRACEPARENT.split("-")[2]
    assert {span["spanId"] for span in in_the_middle} <= {span["spanId"] for span in found}


def _printed(rig: Rig, turn: str) -> str:
    command = [sys.executable, "-m", "chordage.workers.cli", "trace", turn, "--otlp"]
    done = subprocess.run(command, env=rig.env, capture_output=True, check=False, timeout=150)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


class Taken:
    """What a collector was sent. While `away`, it answers 503."""

    def __init__(self) -> None:
        self.away = True
        self.refused = 0
        self.spans: list[str] = []
        self.headers: set[str | None] = set()


@contextmanager
def a_collector(taken: Taken) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            if not taken.away:
                assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/json")
                taken.headers.add(self.headers.get("x-tenant"))
                taken.spans += [span["spanId"] for span in spans_in(body)]
            taken.refused += taken.away
            self.send_response(503 if taken.away else 200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_workers_send_what_has_ended_also_after_the_collector_and_they_were_away(make_rig, migrated_database_url):
    taken = Taken()
    with a_collector(taken) as url:
        rig = make_rig(migrated_database_url("sqlite"), otlp_endpoint=url)
        rig.env["OTEL_EXPORTER_OTLP_HEADERS"] = "x-tenant=ours"
        rig.worker("all", "--role", "all", "--concurrency", "2")
        rig.ready()
        rig.submit(Plan(id="first", tools=("pure",)))
        rig.wait_until_done()
        until(lambda: taken.refused, "it was tried")
        rig.workers["all"].kill()
        rig.workers["all"].start()
        taken.away = False
        rig.submit(Plan(id="second", tools=("pure",)))
        rig.wait_until_done()
        expected = {
            span["spanId"] for run in rig.rows("runs") for span in spans_in(trace_of(rig.runtime.store, run["id"]))
        }
        until(lambda: set(taken.spans) >= expected, "every span has come", patience=180)
        rig.workers["all"].kill()

    assert set(taken.spans) == expected
    assert taken.headers == {"ours"}
