"""The clients follow turns of a real server, over a connection that is cut again and again."""

from __future__ import annotations

import random

import anyio
import httpx
import pytest

import chordage
from chordage.config.settings import load
from support import asking_room, client_room
from support.waiting import PATIENCE
from support.working_server import streaming, working_server

pytestmark = pytest.mark.redis

CUTS = 12


@pytest.fixture
def server(tmp_path, migrated_database_url, redis_url, request):
    room = getattr(request, "param", client_room).write(tmp_path / "room")
    settings = load(room=room, database_url=migrated_database_url("sqlite"), redis_url=redis_url)

    with working_server(settings, streaming(settings)) as server:
        yield server


class CuttingTransport(httpx.HTTPTransport):
    """Cuts the first streams anywhere within their bytes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self.cuts = 0

    def handle_request(self, request):
        response = super().handle_request(request)
        if not request.url.path.endswith("/events") or self.cuts >= CUTS:
            return response
        self.cuts += 1
        inner, left = response.stream, self._random.randrange(3000)

        class Cut(httpx.SyncByteStream):
            def __iter__(self):
                nonlocal left
                for chunk in inner:
                    yield chunk[:left]
                    left -= len(chunk)
                    if left <= 0:
                        raise httpx.ReadError("cut")

            def close(self):
                inner.close()

        return httpx.Response(response.status_code, headers=response.headers, stream=Cut())


def shape(events):
    return [(event.id, event.kind) for event in events if event.id is not None]


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_that_is_cut_has_every_fact_once_and_the_text_of_the_history(server, seed):
    transport = CuttingTransport(seed)
    with httpx.Client(transport=transport, timeout=PATIENCE) as http:
        client = chordage.Client(server.url, http=http, retries=50, sleep=lambda _: None)
        turn = client.submit("add these")
        cut = list(client.stream(turn))
        whole = list(client.stream(turn))
        said = [message.text for message in client.history(turn.thread_id) if message.role == "assistant"]

    texts, text = [], ""
    for event in cut:
        text = "" if event.kind == "live.reset" else text + event.text
        if event.kind == "model.replied":
            texts.append(text)
            text = ""
    assert shape(cut) == shape(whole)
    assert cut[-1].ends_turn
    assert texts == said[::-1] == ["Let me add.", "Sums: 3\n34"]
    assert transport.cuts > 0


@pytest.mark.parametrize("server", [asking_room], indirect=True)
def test_a_stream_ends_at_the_question_and_another_goes_on_behind_it(server):
    async def main():
        async with chordage.AsyncClient(server.url) as client:
            turn = await client.submit("deploy")
            first = [event async for event in client.stream(turn)]
            [question] = [one async for one in client.inbox()]
            await client.decide(question, "approve", {"ok": True})
            last = max((event.id for event in first if event.id), key=lambda id_: int(id_.split("-")[0]))
            second = [event async for event in client.stream(turn, after=last)]
            return first, second

    first, second = anyio.run(main)
    assert first[-1].is_waiting
    assert first[-1].data["questions"][0]["tool"] == "deploy"
    assert second[-1].ends_turn
    assert not set(shape(first)) & set(shape(second))


def test_a_turn_that_is_unknown_has_no_stream(server):
    with chordage.Client(server.url) as client, pytest.raises(chordage.NotFound):
        list(client.stream("nope"))
