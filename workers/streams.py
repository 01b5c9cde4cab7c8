"""The live streams of the HTTP server, connected to its Redis."""

from __future__ import annotations

from chordage.config.settings import Settings
from chordage.orchestrator import stages
from chordage.orchestrator.gateways.run_stream import BLOCK, RedisRunStreams
from chordage.orchestrator.loops.streams import StreamHub
from chordage.orchestrator.runtime import Runtime
from chordage.tasks.courier import Courier
from chordage.workers.bootstrap import redis_from

ANSWER_WITHIN = 5.0  # seconds, behind those that a read waits


def streams_of(settings: Settings, rt: Runtime, courier: Courier) -> StreamHub:
    """What is copied to the bus for a follower may make a delivery due, so what follows from it is sent."""
    hub = StreamHub(rt.store, lambda: courier.send(stages.project(rt)))
    client = redis_from(settings, decode_responses=True, socket_timeout=BLOCK + ANSWER_WITHIN)
    hub.connect(
        RedisRunStreams(
            client, prefix=settings.prefix, on_notes=hub.on_notes, on_link=hub.on_link, cipher=rt.store.cipher
        )
    )
    return hub
