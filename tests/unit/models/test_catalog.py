"""Retries, fallbacks, and the record of both."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from chordage.orchestrator.core.agent import CompactionSpec
from chordage.orchestrator.core.errors import ConfigError, ModelFailed, OutOfTime, RoomError
from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.gateways.models.catalog import ModelCatalog
from chordage.orchestrator.gateways.models.providers import ProviderConfig
from support import scripted_server
from support.fake_providers import KEYS, Calm, a_prompt, a_script, an_agent, catalog_at, providers_at, serving


def scripted(tmp_path, **settings):
    return ModelCatalog(environ={}, scripts=tmp_path, **{"jitter": lambda: 1.0, **settings})


def test_a_model_is_called_again_after_a_passing_fault_and_every_attempt_is_recorded(tmp_path):
    a_script(tmp_path, "[{text: hello, fail: {fault: overloaded, times: 2}}]", "s.yaml")
    abort, times = Calm(), iter(range(100))
    catalog = scripted(tmp_path, clock=lambda: float(next(times)))
    reply = catalog.complete(an_agent("scripted:s.yaml", model_retries=2), a_prompt("hi"), abort=abort)
    assert [(one.model, one.fault, one.seconds) for one in reply.attempts] == [
        ("scripted:s.yaml", Fault.OVERLOADED, 1.0),
        ("scripted:s.yaml", Fault.OVERLOADED, 1.0),
        ("scripted:s.yaml", None, 1.0),
    ]
    assert reply.attempts[-1].usage == reply.usage
    assert abort.slept == [0.5, 1.0]


def test_backoff_doubles_up_to_a_bound_and_is_jittered_from_nothing(tmp_path):
    a_script(tmp_path, "[{fail: server}]", "s.yaml")
    for jitter, wanted in ((1.0, [0.5, 1, 2, 4, 8, 16, 30, 30]), (0.0, [0.0] * 8)):
        abort = Calm()
        with pytest.raises(ModelFailed):
            scripted(tmp_path, jitter=lambda jitter=jitter: jitter).complete(
                an_agent("scripted:s.yaml", model_retries=8), a_prompt("hi"), abort=abort
            )
        assert abort.slept == wanted


@pytest.mark.parametrize(("asked", "wait"), [(7, 7.0), (3600, 60.0)])
@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_retry_after_is_honoured_up_to_a_bound(tmp_path, wire, asked, wait):
    script = f"[{{text: hello, fail: {{fault: rate_limit, retry_after: {asked}, times: 1}}}}]"
    abort = Calm()
    with serving(tmp_path, script) as server, catalog_at(server.url) as catalog:
        assert catalog.complete(an_agent(f"{wire}:m", model_retries=1), a_prompt("hi"), abort=abort).text == "hello"
    assert abort.slept == [wait]


def test_no_sleep_follows_the_last_attempt(tmp_path):
    a_script(tmp_path, "[{fail: server}]", "s.yaml")
    abort = Calm()
    with pytest.raises(ModelFailed) as failed:
        scripted(tmp_path).complete(an_agent("scripted:s.yaml", model_retries=1), a_prompt("hi"), abort=abort)
    assert (len(failed.value.attempts), len(abort.slept)) == (2, 1)


@pytest.mark.parametrize("fault", [Fault.AUTH, Fault.QUOTA, Fault.CONTEXT, Fault.REJECTED])
def test_a_fault_that_stays_goes_straight_to_the_fallback(tmp_path, fault):
    a_script(tmp_path, f"[{{fail: {fault}}}]", "first.yaml")
    a_script(tmp_path, "[{text: from the second}]", "second.yaml")
    abort = Calm()
    agent = an_agent("scripted:first.yaml", "scripted:second.yaml", model_retries=5)
    reply = scripted(tmp_path).complete(agent, a_prompt("hi"), abort=abort)
    assert (reply.text, reply.model, abort.slept) == ("from the second", "scripted:second.yaml", [])
    assert [one.fault for one in reply.attempts] == [fault, None]


def test_fallbacks_come_in_their_order_each_with_its_own_retries(tmp_path):
    for name in ("a", "b", "c"):
        a_script(tmp_path, "[{fail: server}]", f"{name}.yaml")
    agent = an_agent("scripted:a.yaml", "scripted:b.yaml", "scripted:c.yaml", model_retries=1)
    with pytest.raises(ModelFailed) as failed:
        scripted(tmp_path).complete(agent, a_prompt("hi"), abort=Calm())
    assert [one.model[9] for one in failed.value.attempts] == list("aabbcc")
    assert failed.value.fault is Fault.SERVER
    assert "agent 'tester': no model answered in 6 attempts: scripted:a.yaml: server (the script says so);" in str(
        failed.value
    )


def test_a_fallback_may_speak_the_other_format(tmp_path):
    (tmp_path / "down").mkdir()
    with serving(tmp_path / "down", "[{fail: overloaded}]") as down, serving(tmp_path, "[hello]") as up:
        providers = {"openai": providers_at(down.url)["openai"], "anthropic": providers_at(up.url)["anthropic"]}
        catalog = ModelCatalog(providers, environ=KEYS)
        reply = catalog.complete(an_agent("openai:big", "anthropic:small"), a_prompt("hi"), abort=Calm())
        catalog.close()
    asked = [(one.path, one.body["model"]) for one in (*down.requests, *up.requests)]
    assert asked == [("/v1/chat/completions", "big"), ("/v1/messages", "small")]
    assert (reply.text, reply.model) == ("hello", "anthropic:small")
    assert [one.model for one in reply.attempts] == ["openai:big", "anthropic:small"]


def test_text_is_passed_on_while_it_comes_and_again_from_the_start_with_a_new_attempt(tmp_path):
    script = "[{text: 'one two three', chunk: 4, fail: {fault: truncated, times: 1, after: 3}}]"
    pieces = []
    with serving(tmp_path, script) as server, catalog_at(server.url) as catalog:
        agent = an_agent("openai:m", model_retries=1)
        reply = catalog.complete(agent, a_prompt("hi"), abort=Calm(), on_delta=pieces.append)
    assert pieces == ["one ", "two ", "one ", "two ", "thre", "e"]
    assert reply.text == "one two three"


def test_nothing_is_passed_on_without_streaming(tmp_path):
    pieces = []
    with serving(tmp_path, "[{text: hello}]") as server, catalog_at(server.url) as catalog:
        catalog.complete(an_agent("openai:m", stream=False), a_prompt("hi"), abort=Calm(), on_delta=pieces.append)
    assert pieces == []


def test_what_a_listener_raises_ends_the_call_and_is_not_retried(tmp_path):
    class EnoughHeard(Exception):
        pass

    def listen(text):
        raise EnoughHeard(text)

    with serving(tmp_path, "[{text: one two three four}]") as server, catalog_at(server.url) as catalog:
        with pytest.raises(EnoughHeard):
            catalog.complete(an_agent("openai:m", model_retries=3), a_prompt("hi"), abort=Calm(), on_delta=listen)
        assert server.calls == 1


def test_a_missing_key_is_found_before_any_turn_runs():
    agent = an_agent("openai:gpt-4o-mini")
    with pytest.raises(ConfigError) as error:
        ModelCatalog(environ={}).check(agent)
    assert str(error.value) == (
        "model provider 'openai' needs an API key: set OPENAI_API_KEY in the environment, or OPENAI_API_KEY_FILE to "
        "the path of a file with it"
    )


def test_a_fallback_is_checked_too(tmp_path):
    a_script(tmp_path, "[{text: hello}]", "s.yaml")
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY"):
        scripted(tmp_path).check(an_agent("scripted:s.yaml", "anthropic:claude"))


def test_the_model_that_writes_summaries_is_checked_too(tmp_path):
    a_script(tmp_path, "[{text: hello}]", "s.yaml")
    agent = replace(an_agent("scripted:s.yaml"), compaction=CompactionSpec(model="anthropic:claude"))
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY"):
        scripted(tmp_path).check(agent)


def test_a_checked_agent_with_all_it_needs_passes(tmp_path):
    a_script(tmp_path, "[{text: hello}]", "s.yaml")
    catalog = ModelCatalog(environ={"OPENAI_API_KEY": "k"}, scripts=tmp_path)
    assert catalog.check(an_agent("openai:gpt", "scripted:s.yaml")) is None


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("gpt-4o", "model 'gpt-4o' must be written provider:model"),
        ("openai:", "model 'openai:' must be written provider:model"),
        ("acme:big", r"no provider 'acme'; choose from openai, anthropic, scripted, or add \[models.acme\]"),
    ],
)
def test_a_model_name_without_a_provider_is_refused_with_what_to_do(model, words):
    with pytest.raises(ConfigError, match=words):
        ModelCatalog(environ={}).check(an_agent(model))


def test_a_script_that_is_not_there_is_found_by_the_check(tmp_path):
    with pytest.raises(RoomError, match=r"gone\.yaml: the script of model 'scripted:gone\.yaml' cannot be read"):
        scripted(tmp_path).check(an_agent("scripted:gone.yaml"))


def test_a_key_that_vanished_under_a_running_worker_fails_the_call_and_not_the_worker():
    with pytest.raises(ModelFailed, match="set OPENAI_API_KEY") as failed:
        ModelCatalog(environ={}).complete(an_agent("openai:gpt", model_retries=3), a_prompt("hi"), abort=Calm())
    assert [one.fault for one in failed.value.attempts] == [Fault.AUTH]


def test_a_script_that_runs_out_fails_the_call_and_names_file_and_reply(tmp_path):
    path = a_script(tmp_path, "[{when: never written, text: hello}]", "s.yaml")
    with pytest.raises(ModelFailed) as failed:
        scripted(tmp_path).complete(an_agent("scripted:s.yaml", model_retries=3), a_prompt("hi"), abort=Calm())
    assert f"{path}: the script has no reply number 1 to 'hi'" in str(failed.value)
    assert [one.fault for one in failed.value.attempts] == [Fault.REJECTED]


def test_a_key_repeated_by_the_server_is_not_shown(tmp_path):
    script = "def reply(prompt, attempt):\n    raise ValueError('wrong key sk-one')\n"
    server_script = a_script(tmp_path, script, "s.py")
    server = scripted_server.serve(server_script)
    with catalog_at(server.url) as catalog, pytest.raises(ModelFailed, match=r"wrong key \*\*\*") as failed:
        catalog.complete(an_agent("openai:m"), a_prompt("hi"), abort=Calm())
    server.close()
    assert "sk-one" not in str(failed.value)


def test_a_header_from_the_environment_is_sent_and_not_shown(tmp_path):
    script = "def reply(prompt, attempt):\n    raise ValueError('wrong header tok-9')\n"
    with closing(scripted_server.serve(a_script(tmp_path, script, "script.py"))) as server:
        gateway = ProviderConfig(
            name="gate", wire="openai", base_url=f"{server.url}/v1", headers={"x-token_env": "GATE_TOKEN"}
        )
        with (
            closing(ModelCatalog({"gate": gateway}, environ={"GATE_TOKEN": "tok-9"})) as catalog,
            pytest.raises(ModelFailed) as failed,
        ):
            catalog.complete(an_agent("gate:m"), a_prompt("hi"), abort=Calm())

    assert server.requests[0].headers["x-token"] == "tok-9"
    assert "wrong header ***" in str(failed.value)


def test_a_header_of_the_room_replaces_ours_in_any_case_of_letters(tmp_path):
    script = "def reply(prompt, attempt):\n    return 'hi'\n"
    with closing(scripted_server.serve(a_script(tmp_path, script, "script.py"))) as server:
        gateway = ProviderConfig(
            name="gate", wire="openai", base_url=f"{server.url}/v1", headers={"User-Agent": "mine/1"}
        )
        with closing(ModelCatalog({"gate": gateway}, environ={})) as catalog:
            catalog.complete(an_agent("gate:m"), a_prompt("hi"), abort=Calm())

    (request,) = server.requests
    assert request.headers["user-agent"] == "mine/1"
    assert len(set(request.header_names)) == len(request.header_names)


def test_on_reset_is_called_when_a_reply_is_begun_again(tmp_path):
    a_script(tmp_path, "[{text: abcdef, chunk: 3, fail: {fault: truncated, times: 1}}]", "s.yaml")
    pieces: list[str] = []
    scripted(tmp_path).complete(
        an_agent("scripted:s.yaml", model_retries=1), a_prompt("hi"), abort=Calm(), on_delta=pieces.append,
        on_reset=lambda: pieces.append("reset"),
    )  # fmt: skip
    assert "".join(pieces).endswith("resetabcdef")
    assert pieces.count("reset") == 1


def test_reasoning_comes_before_the_text_and_is_reset_with_it(tmp_path):
    script = "[{reasoning: abcd, text: e, chunk: 2, fail: {fault: truncated, times: 1}}]"
    a_script(tmp_path, script, "s.yaml")
    pieces: list[str] = []
    reply = scripted(tmp_path).complete(
        an_agent("scripted:s.yaml", model_retries=1), a_prompt("hi"), abort=Calm(), on_delta=pieces.append,
        on_reset=lambda: pieces.append("reset"), on_reasoning=lambda text: pieces.append(f"({text})"),
    )  # fmt: skip
    assert pieces == ["(abcd)", "reset", "(ab)", "(cd)", "e"]
    assert reply.reasoning == "abcd"


def test_nothing_is_reset_where_nothing_was_shown(tmp_path):
    a_script(tmp_path, "[{text: abcdef, fail: {fault: overloaded, times: 2}}]", "s.yaml")
    resets: list[str] = []
    scripted(tmp_path).complete(
        an_agent("scripted:s.yaml", model_retries=2), a_prompt("hi"), abort=Calm(), on_delta=lambda _: None,
        on_reset=lambda: resets.append("reset"),
    )  # fmt: skip
    assert resets == []


def test_call_that_is_out_of_time_lists_the_requests_that_were_made(tmp_path):
    class Late(Calm):
        def check(self):
            raise OutOfTime

    a_script(tmp_path, "[{text: abcdef}]", "s.yaml")
    with pytest.raises(OutOfTime) as late:
        scripted(tmp_path).complete(an_agent("scripted:s.yaml"), a_prompt("hi"), abort=Late())
    assert late.value.attempts == ()

    class LateInTheCall(Calm):
        checks = 0

        def check(self):
            self.checks += 1
            if self.checks > 1:
                raise OutOfTime

    a_script(tmp_path, "[{text: abcdef, latency: 1}]", "t.yaml")
    with pytest.raises(OutOfTime) as late:
        scripted(tmp_path).complete(an_agent("scripted:t.yaml"), a_prompt("hi"), abort=LateInTheCall())
    assert [(one.model, one.fault) for one in late.value.attempts] == [("scripted:t.yaml", Fault.TIMEOUT)]
