"""The unchanged `openai` package speaks to a server with a fleet behind it, whose workers are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from chordage.orchestrator import views
from chordage.workers import web
from support.rig import Rig
from support.waiting import until
from support.web_server import served

pytestmark = [pytest.mark.redis, pytest.mark.slow]

TOOLS = '''\
from chordage import tool


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@tool(effect="unsafe")
def pay(to: str) -> str:
    """Pays."""
    return f"paid {to}"
'''
AGENT = """\
model = "scripted:clerk.yaml"
tools = ["clerk_tools"]
placement = "spread"
mixed_round = "wait"

[permission]
allow = ["add"]
ask = ["pay"]
"""
LONG = "This is a long answer that takes its time, word by word, until it is over."
SCRIPT = f"""\
- when: pay
  text: I add and pay.
  tool_calls:
    - {{name: add, arguments: {{a: 1, b: 2}}}}
    - {{name: add, arguments: {{a: 30, b: 4}}}}
    - {{name: pay, arguments: {{to: bob}}}}
- when: pay
  text: "It came to this: {{results}}"
- when: slowly
  pace: 0.25
  chunk: 4
  text: {LONG}
- text: "You said: {{user}}"
"""


@pytest.fixture
def rig(make_rig: Callable[..., Rig], database_url: str) -> Rig:
    one = make_rig(database_url, lease=10, beat=1, sweep=0.5)
    (one.room / "agents").mkdir(exist_ok=True)
    (one.room / "agents" / "clerk.toml").write_text(AGENT)
    (one.room / "clerk.yaml").write_text(SCRIPT)
    (one.room / "clerk_tools.py").write_text(TOOLS)
    for name in ("a", "b"):
        one.worker(name, "--concurrency", "4")
    one.ready()
    return one


@contextmanager
def clients(rig: Rig) -> Iterator[openai.OpenAI]:
    with served(web.wired(rig.settings)) as server:
        address = str(server.base_url).rstrip("/") + "/v1"
        with openai.OpenAI(base_url=address, api_key="none", max_retries=0, timeout=150) as client:
            yield client


def remarks(rig: Rig, thread: str) -> list[str]:
    """What the agent said on the thread."""
    return [each.text for each in views.history(rig.runtime.store, thread) if each.role == "assistant"]


def texts(*responses: Any) -> list[str]:
    return [item.content[0].text for each in responses for item in each.output if item.type == "message"]


def kinds(response: Any) -> list[str]:
    return [item.type for item in response.output]


def streamed(client: openai.OpenAI, **request: Any) -> Any:
    with client.responses.stream(model="clerk", **request) as stream:
        return stream.get_final_response()


def approval(response: Any, *, approve: bool = True) -> Any:
    (request,) = [item for item in response.output if item.type == "mcp_approval_request"]
    return [{"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}]


def test_a_conversation_with_parallel_tools_and_an_approval_ends_with_the_transcript(rig: Rig):
    with clients(rig) as client:
        asked = streamed(client, input="pay", conversation="t1")
        paid = streamed(client, previous_response_id=asked.id, input=approval(asked))
        after = streamed(client, previous_response_id=paid.id, input="thanks")
        whole = client.responses.retrieve(asked.id)

    assert kinds(asked) == ["message", "mcp_call", "mcp_call", "mcp_approval_request"]
    assert kinds(paid)[0] == "mcp_call"
    assert paid.output[0].output == "paid bob"
    assert texts(asked, paid, after) == remarks(rig, "api:t1")
    assert [item.output for item in asked.output if item.type == "mcp_call"] == ["3", "34"]
    assert kinds(whole) == kinds(asked) + kinds(paid)
    assert texts(whole, after) == remarks(rig, "api:t1")


def test_a_denied_call_ends_with_the_transcript_too(rig: Rig):
    with clients(rig) as client:
        asked = client.responses.create(model="clerk", input="pay", conversation="t2")
        denied = client.responses.create(
            model="clerk", previous_response_id=asked.id, input=approval(asked, approve=False)
        )

    assert denied.output[0].type == "mcp_call"
    assert denied.output[0].status == "failed"
    assert texts(asked, denied) == remarks(rig, "api:t2")


def kill_in_the_text(rig: Rig, stream: Iterator[Any], piece: Callable[[Any], str]) -> list[Any]:
    """All of the stream. Once a text has begun, the workers are killed."""
    events = []
    for event in stream:
        events.append(event)
        if piece(event):
            break
    for worker in rig.workers.values():
        worker.kill()
    rig.restart_the_dead()
    return [*events, *stream]


def delta(event: Any) -> str:
    return event.delta if event.type == "response.output_text.delta" else ""


def test_the_final_text_is_the_committed_one_when_a_worker_is_killed_in_the_middle(rig: Rig):
    with clients(rig) as client, client.responses.stream(model="clerk", input="slowly", conversation="t3") as stream:
        events = kill_in_the_text(rig, iter(stream), delta)
        response = stream.get_final_response()

    done = [event.item.status for event in events if event.type == "response.output_item.done"]
    assert done == ["incomplete", "completed"]
    assert response.output_text == LONG
    assert texts(response) == remarks(rig, "api:t3")


def test_a_chat_ends_with_an_error_when_a_worker_is_killed_in_the_middle(rig: Rig):
    with clients(rig) as client:
        said: Any = [{"role": "user", "content": "slowly"}]
        stream = client.chat.completions.create(
            model="clerk", messages=said, stream=True, extra_headers={"X-Thread-Id": "t4", "Idempotency-Key": "k"}
        )
        with pytest.raises(openai.APIError) as lost:
            kill_in_the_text(rig, iter(stream), lambda chunk: chunk.choices[0].delta.content or "")
        again = client.chat.completions.create(
            model="clerk", messages=said, extra_headers={"X-Thread-Id": "t4", "Idempotency-Key": "k"}
        )

    assert lost.value.code == "stream_reset"
    assert again.choices[0].message.content == LONG
    assert remarks(rig, "api:t4") == [LONG]


def test_a_reader_that_was_cut_off_goes_on_where_it_was(rig: Rig):
    with clients(rig) as client:
        stream = client.responses.create(model="clerk", input="slowly", stream=True)
        seen, number, response = "", 0, ""
        for event in stream:
            response = response or event.response.id
            seen, number = seen + delta(event), event.sequence_number
            if len(seen) > 12:
                break
        stream.close()
        for cut in (30, 50, len(LONG) + 1):
            stream = client.responses.retrieve(response, stream=True, starting_after=number)
            for event in stream:
                seen, number = seen + delta(event), event.sequence_number
                if len(seen) > cut:
                    break
            stream.close()

    assert seen == LONG


def test_cancelling_ends_the_turn_and_going_away_does_not(rig: Rig):
    with clients(rig) as client:
        left = client.responses.create(model="clerk", input="slowly", stream=True)
        left_id = next(iter(left)).response.id
        left.close()
        stopped = client.responses.create(model="clerk", input="slowly", background=True)
        cancelled = [client.responses.cancel(stopped.id).status for _ in range(2)]
        until(lambda: client.responses.retrieve(left_id).status == "completed", "the other is carried out")

    assert cancelled == ["cancelled", "cancelled"]
