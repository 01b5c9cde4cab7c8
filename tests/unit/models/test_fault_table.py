"""The 46 things a provider can do to one request: 23 in each wire format, each with the one right reading."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chordage.orchestrator.core.errors import ModelFailed
from chordage.orchestrator.core.model import Fault, Reply, StopReason, Usage
from chordage.orchestrator.gateways.models.catalog import ModelCatalog
from support.fake_providers import WIRES, Calm, a_prompt, an_agent, catalog_at, serving
from support.scripted_server import ScriptedServer

SCRIPT = """
- {when: {regex: ^ok$}, text: Hello world, usage: {input: 11, output: 7, cached: 4}}
- when: {regex: ^tools$}
  text: Let me see.
  tool_calls:
    - {name: add, arguments: {a: 1, b: 2}, id: one}
    - {name: add, arguments: {a: 3, b: 4}, id: two}
- {when: {regex: ^length$}, text: and then, stop: max_tokens}
- {when: {regex: ^badargs$}, tool_calls: [{name: add, arguments: '{"a": 1,'}]}
- {when: {regex: ^e429$}, fail: {fault: rate_limit, retry_after: 2}}
- {when: {regex: ^quota$}, fail: quota}
- {when: {regex: ^e500$}, fail: server}
- {when: {regex: ^e529$}, fail: overloaded}
- {when: {regex: ^flaky$}, text: Hello, fail: {fault: server, times: 1}}
- {when: {regex: ^context$}, fail: context}
- {when: {regex: ^e401$}, fail: auth}
- {when: {regex: ^timeout$}, fail: timeout}
- {when: {regex: ^malformed$}, text: Hello, fail: malformed}
- {when: {regex: ^html200$}, fail: {fault: malformed, how: html}}
- {when: {regex: ^empty$}, fail: {fault: malformed, how: empty}}
- {when: {regex: ^nochoices$}, fail: {fault: malformed, how: no_choices}}
- {when: {regex: ^cut$}, text: one two three four five, fail: {fault: truncated, after: 3}}
- {when: {regex: ^sseerr$}, text: one two three four, fail: {fault: overloaded, how: sse_error}}
- {when: {regex: ^ssebad$}, text: one two three four, fail: {fault: malformed, how: sse_garbage}}
- {when: {regex: ^stall$}, text: one two three four, fail: {fault: timeout, how: stall}}
- {when: {regex: ^reset$}, text: one two three four five, fail: {fault: connection, how: reset}}
"""


def hello(reply: Reply) -> bool:
    return (
        reply.text == "Hello world"
        and reply.stop is StopReason.END
        and reply.usage == Usage(input_tokens=11, output_tokens=7, cached_tokens=4)
    )


def two_calls(reply: Reply) -> bool:
    asked = [(ask.id, ask.name, ask.arguments) for ask in reply.asks]
    wanted = [("one", "add", {"a": 1, "b": 2}), ("two", "add", {"a": 3, "b": 4})]
    return reply.text == "Let me see." and reply.stop is StopReason.TOOL_USE and asked == wanted


def cut_off(reply: Reply) -> bool:
    return reply.stop is StopReason.MAX_TOKENS and reply.text == "and then"


def bad_arguments(reply: Reply) -> bool:
    (ask,) = reply.asks
    return ask.arguments is None and '{"a": 1,' in ask.raw and reply.stop is StopReason.TOOL_USE


def second_attempt(reply: Reply) -> bool:
    return [attempt.fault for attempt in reply.attempts] == [Fault.SERVER, None] and reply.text == "Hello"


def nothing_said(reply: Reply) -> bool:
    return reply.text == "" and reply.stop is StopReason.END


CALLS = {
    "ok": hello,
    "tools": two_calls,
    "length": cut_off,
    "badargs": bad_arguments,
    "e429": Fault.RATE_LIMIT,
    "quota": Fault.QUOTA,
    "e500": Fault.SERVER,
    "e529": Fault.OVERLOADED,
    "flaky": second_attempt,
    "context": Fault.CONTEXT,
    "e401": Fault.AUTH,
    "timeout": Fault.TIMEOUT,
    "malformed": Fault.MALFORMED,
    "html200": Fault.MALFORMED,
    "empty": Fault.MALFORMED,
    "nochoices": Fault.MALFORMED,
}
STREAMS = {
    "ok": hello,
    "tools": two_calls,
    "cut": Fault.TRUNCATED,
    "sseerr": Fault.OVERLOADED,
    "ssebad": Fault.MALFORMED,
    "stall": Fault.TIMEOUT,
    "e429": Fault.RATE_LIMIT,
}
TABLE = [
    pytest.param(wire, name, stream, wanted, id=f"{wire}-{'stream' if stream else 'call'}-{name}")
    for wire in WIRES
    for stream, cases in ((False, CALLS), (True, STREAMS))
    for name, wanted in cases.items()
]
MORE = [
    pytest.param(wire, name, stream, wanted, id=f"{wire}-{'stream' if stream else 'call'}-{name}")
    for wire in WIRES
    for stream, name, wanted in (
        (True, "reset", Fault.CONNECTION),
        (False, "reset", Fault.CONNECTION),
        (False, "stall", Fault.TIMEOUT),
        (True, "timeout", Fault.TIMEOUT),
        (True, "badargs", bad_arguments),
        (True, "length", cut_off),
        (True, "html200", Fault.MALFORMED),
        (True, "empty", Fault.MALFORMED),
        (True, "malformed", Fault.MALFORMED),
        (True, "flaky", second_attempt),
    )
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    with serving(tmp_path_factory.mktemp("script"), SCRIPT) as server:
        yield server


@pytest.fixture(scope="module")
def catalog(server: ScriptedServer) -> Iterator[ModelCatalog]:
    with catalog_at(server.url) as catalog:
        yield catalog


def test_table_has_23_scenarios_for_each_of_two_wire_formats():
    assert len(TABLE) == 46


@pytest.mark.parametrize(("wire", "name", "stream", "wanted"), [*TABLE, *MORE])
def test_what_a_provider_does_is_read_rightly(catalog, wire, name, stream, wanted):
    seconds = 0.5 if wanted is Fault.TIMEOUT else 60.0  # on a busy machine any answer may take half a second
    agent = an_agent(f"{wire}:m", stream=stream, model_timeout=seconds, model_retries=1 if name == "flaky" else 0)
    if wire == "anthropic" and name == "nochoices":
        wanted = nothing_said  # this format has no choices; an answer without a block is a legal one
    try:
        outcome = catalog.complete(agent, a_prompt(name), abort=Calm())
    except ModelFailed as failed:
        assert failed.fault is wanted, failed
        assert [attempt.fault for attempt in failed.attempts] == [wanted]
    else:
        assert not isinstance(wanted, Fault), f"{outcome} where {wanted} was expected"
        assert wanted(outcome), outcome
