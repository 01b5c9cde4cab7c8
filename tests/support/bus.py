"""A bus in a real Redis for worlds, what is read from it, and receivers that keep what they were sent."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from redis import Redis

from chordage.orchestrator.core.bus import BusRules
from chordage.orchestrator.core.channels import Polled
from chordage.orchestrator.core.deliveries import DeliveryRules
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.intents import Deliver, Project
from chordage.orchestrator.gateways.redis_bus import RedisBus

PREFIX = "b:"


@dataclass
class Receiver:
    """A channel. `says` may raise what a receiver would answer; it is asked before anything is kept."""

    says: Callable[[object], None] = lambda reply: None
    got: list[object] = field(default_factory=list)
    then: Callable[[], None] = lambda: None  # behind what was kept

    def deliver(self, address, reply):
        self.says(reply)
        self.got.append(reply)
        self.then()

    def poll(self, cursor):
        return Polled(messages=(), cursor=cursor)

    def close(self): ...

    @property
    def keys(self) -> list[str]:
        return [reply.key for reply in self.got]


@dataclass
class OneChannel:
    channel: Receiver

    def names(self):
        return ["me"]

    def get(self, name):
        if name != "me":
            raise NotFound(f"there is no channel {name!r} in channels.toml")
        return self.channel


def with_bus(world, redis_url, **rules):
    """The world has a bus, a channel `me`, and delivers one after the other, so that the test owns the schedule."""
    client = Redis.from_url(redis_url, decode_responses=True)
    receiver = Receiver()
    bus_rules = BusRules(**rules)
    world.runtime = replace(
        world.runtime, bus=RedisBus(client, prefix=PREFIX, rules=bus_rules), bus_rules=bus_rules,
        channels=OneChannel(receiver), web_hooks=receiver, delivery=DeliveryRules(at_once=4, to_one=2, first=10),
    )  # fmt: skip
    return client, receiver


def settle(world, rounds=50):
    """Until the bus has everything and nothing is due."""
    for _ in range(rounds):
        world.pending = [one for one in world.pending if not isinstance(one, Project | Deliver)]
        if not (world.deliver(Project()) or world.rows("projection")[0]["error"]):
            return
        world.run_dry()
        world.clock.pass_by(1)
    raise AssertionError("the bus does not come to rest")


def stream(client, name=""):
    entries = client.xrange(f"{PREFIX}bus{name}")
    return [{**fields, "id": number, "data": json.loads(fields["data"])} for number, fields in entries]


def kinds(client, name=""):
    return [entry["kind"] for entry in stream(client, name)]


class WebReceiver:
    """A local web server that counts by idempotency key."""

    def __init__(self) -> None:
        self.status = 200
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.taken: Counter[str] = Counter()  # answered with 2xx
        self.order: dict[str, list[str]] = defaultdict(list)  # by thread, of the first time
        self.pause = lambda path: None
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                receiver._answer(self)

            def log_message(self, *args): ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _answer(self, request) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        self.requests.append((request.path, dict(request.headers), body))
        self.pause(request.path)
        if self.status == 200:
            key = request.headers["Idempotency-Key"]
            if not self.taken[key]:
                self.order[json.loads(body)["thread_id"]].append(key)
            self.taken[key] += 1
        request.send_response(self.status)
        if self.status == 429:
            request.send_header("Retry-After", "7")
        request.send_header("Content-Length", "2")
        request.end_headers()
        request.wfile.write(b"ok")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
