"""Scripted models: which reply comes, what is in it, and what is wrong with a script."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chordage.orchestrator.core.errors import Aborted, ModelFailed, RoomError
from chordage.orchestrator.core.model import AssistantSays, Fault, StopReason, ToolAsk, ToolSays, Usage
from chordage.orchestrator.gateways.models.catalog import ModelCatalog
from chordage.orchestrator.gateways.models.script import ScriptModel
from chordage.orchestrator.gateways.models.script_files import ScriptFolder, load
from chordage.orchestrator.gateways.models.wire import AttemptContext, AttemptFailed
from support.fake_providers import Calm, a_prompt, a_script, an_agent


def play(tmp_path, script, *said, name="s.yaml", number=1, abort=None, on_delta=None, timeout=120.0, **prompt):
    model = ScriptModel(load(a_script(tmp_path, script, name)), "scripted:s")
    order = AttemptContext(abort=abort or Calm(), number=number, timeout=timeout, on_delta=on_delta)
    return model.attempt(a_prompt(*said, **prompt), order)


def answered(text="", *asks):
    return AssistantSays(text=text, asks=asks)


ADD = ToolAsk(id="c1", name="add", arguments={"a": 1})
ADDED = ToolSays(ask_id="c1", name="add", content="3")
TWO_STEPS = """
- text: Adding.
  tool_calls: [{name: add, arguments: {a: 1}}]
- text: "It is {results}, {user}."
"""


def test_reply_is_chosen_by_the_messages_since_the_last_user_message(tmp_path):
    first = play(tmp_path, TWO_STEPS, "Ann")
    assert (first.text, first.asks[0].name, first.stop) == ("Adding.", "add", StopReason.TOOL_USE)
    second = play(tmp_path, TWO_STEPS, "Ann", answered("Adding.", ADD), ADDED)
    assert (second.text, second.asks, second.stop) == ("It is 3, Ann.", (), StopReason.END)
    again = play(tmp_path, TWO_STEPS, "Ann", answered("Adding.", ADD), ADDED, answered("It is 3, Ann."), "Bob")
    assert again.text == "Adding."


def test_same_prompt_gets_the_same_reply_in_every_process(tmp_path):
    model = ScriptModel(load(a_script(tmp_path, TWO_STEPS)), "scripted:s")
    other = ScriptModel(load(a_script(tmp_path, TWO_STEPS)), "scripted:s")
    prompt = a_prompt("Ann", answered("Adding.", ADD), ADDED)
    replies = [one.attempt(prompt, AttemptContext(abort=Calm())) for one in (model, model, other)]
    assert replies[0] == replies[1] == replies[2]


def test_calls_of_different_rounds_have_different_ids(tmp_path):
    script = "{replies: [{tool_calls: [{name: add}, {name: add}]}], repeat: true}"
    first = play(tmp_path, script, "go")
    second = play(tmp_path, script, "go", answered("", *first.asks), ADDED, ADDED)
    assert len({ask.id for ask in (*first.asks, *second.asks)}) == 4


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("weather", "What WEATHER is it?"),
        ("{regex: '^[0-9]+$'}", "42"),
        ("{system: planner}", "anything"),
        ("{contains: a, turn: 1}", "a"),
    ],
)
def test_replies_with_a_condition_come_first_where_it_fits(tmp_path, when, said):
    script = f"[{{when: {when}, text: special}}, {{text: ordinary}}]"
    assert play(tmp_path, script, said, system="You are a planner.").text == "special"


def test_replies_with_a_condition_stay_out_of_the_way_where_it_does_not_fit(tmp_path):
    script = "[{when: weather, text: special}, {when: {turn: 2}, text: second}, {text: ordinary}]"
    assert play(tmp_path, script, "hello").text == "ordinary"
    assert play(tmp_path, script, "hello", answered("ordinary"), "hello").text == "second"


def test_exhausted_script_names_the_missing_reply(tmp_path):
    with pytest.raises(RoomError, match=r"s\.yaml: the script has no reply number 2 to 'hi': add it"):
        play(tmp_path, "[{text: only}]", "hi", answered("only"))


def test_script_may_repeat_or_have_a_final_reply(tmp_path):
    spoken = ("hi", answered("a"), answered("b"))
    assert play(tmp_path, "{replies: [a, b], repeat: true}", *spoken).text == "a"
    assert play(tmp_path, "{replies: [a, b], default: no more}", *spoken).text == "no more"


def test_templates_reach_into_arguments_and_leave_other_braces_alone(tmp_path):
    script = """[{text: '{"turn": {turn}}', tool_calls: [{name: t, arguments: {q: ["<{user}>"], n: 1}}]}]"""
    reply = play(tmp_path, script, "Ann")
    assert (reply.text, reply.asks[0].arguments) == ('{"turn": 1}', {"q": ["<Ann>"], "n": 1})


def test_broken_arguments_are_kept_as_they_are(tmp_path):
    (ask,) = play(tmp_path, """[{tool_calls: [{name: t, arguments: '{"a": '}]}]""", "hi").asks
    assert (ask.arguments, ask.raw) == (None, '{"a": ')


def test_stop_and_usage_come_from_the_script(tmp_path):
    reply = play(tmp_path, "[{text: a, stop: refusal, usage: {input: 9, output: 2, cached: 3}}]", "hi")
    assert (reply.stop, reply.usage) == (StopReason.REFUSAL, Usage(input_tokens=9, output_tokens=2, cached_tokens=3))


def test_usage_is_estimated_where_the_script_has_none(tmp_path):
    assert play(tmp_path, "[{text: twelve chars}]", "abcd", system="efgh").usage == Usage(
        input_tokens=2, output_tokens=3
    )


def test_faults_count_by_the_attempt_and_not_by_the_process(tmp_path):
    script = "[{text: hello, fail: {fault: server, times: 2}}]"
    for number in (2, 1, 2):
        with pytest.raises(AttemptFailed):
            play(tmp_path, script, "hi", number=number)
    assert play(tmp_path, script, "hi", number=3).text == "hello"


@pytest.mark.parametrize("fault", list(Fault))
def test_every_fault_can_be_scripted(tmp_path, fault):
    with pytest.raises(AttemptFailed) as failed:
        play(tmp_path, f"[{{fail: {{fault: {fault}, retry_after: 3}}}}]", "hi")
    assert (failed.value.fault, failed.value.retry_after) == (fault, 3)


def test_text_comes_in_pieces_and_breaks_off_in_the_middle_where_the_fault_is_a_break(tmp_path):
    received = []
    play(tmp_path, "[{text: abcdef, chunk: 2}]", "hi", on_delta=received.append)
    assert received == ["ab", "cd", "ef"]
    received.clear()
    with pytest.raises(AttemptFailed):
        play(tmp_path, "[{text: abcdef, chunk: 2, fail: truncated}]", "hi", on_delta=received.append)
    assert received == ["ab", "c"]


def test_latency_and_pace_are_waited_through_the_abort(tmp_path):
    abort = Calm()
    play(tmp_path, "[{text: abcdef, chunk: 2, latency: 3, pace: 0.5}]", "hi", abort=abort)
    assert abort.slept == [3, 0.5, 0.5]


def test_a_latency_beyond_the_timeout_is_a_timeout(tmp_path):
    abort = Calm()
    with pytest.raises(AttemptFailed, match="not finished within 2 s") as failed:
        play(tmp_path, "[{text: a, latency: 3}]", "hi", abort=abort, timeout=2)
    assert (failed.value.fault, abort.slept) == (Fault.TIMEOUT, [2])


def test_an_abort_during_latency_leaves_at_once(tmp_path):
    class Cancelled(Calm):
        def wait(self, seconds):
            raise Aborted

    with pytest.raises(Aborted):
        play(tmp_path, "[{text: a, latency: 3}]", "hi", abort=Cancelled())


def test_a_python_script_sees_the_prompt_and_the_attempt(tmp_path):
    script = """
    def reply(prompt, attempt):
        if attempt == 1:
            return {"fail": "server"}
        return f"{prompt.said[-1].text}, at attempt {attempt}"
    """
    catalog = ModelCatalog(environ={}, scripts=tmp_path, jitter=lambda: 0.0)
    a_script(tmp_path, script, "s.py")
    reply = catalog.complete(an_agent("scripted:s.py", model_retries=1), a_prompt("hi"), abort=Calm())
    assert reply.text == "hi, at attempt 2"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("def reply(prompt attempt): pass", r"s\.py:1: "),
        ("x = 1", r"s\.py: the script defines no function reply\(prompt, attempt\)"),
        ("1 / 0", r"s\.py: ZeroDivisionError while it was loaded"),
        ("def reply(p, a): return 7", r"s\.py: what reply\(\) returned: a reply must be a mapping or a text, not int"),
        ("def reply(p, a): return {'txt': 'a'}", r"'txt' is unknown in a reply: choose from text"),
        ("def reply(p, a): raise KeyError('x')", r"s\.py: reply\(\) raised KeyError: 'x'"),
        ("def reply(p, a): raise SystemExit(2)", r"s\.py: reply\(\) raised ExitAttempted: SystemExit\(2\)"),
        ("raise KeyboardInterrupt", r"s\.py: ExitAttempted while it was loaded: KeyboardInterrupt\(\)"),
    ],
)
def test_a_broken_python_script_is_reported_with_its_file(tmp_path, script, words):
    with pytest.raises(RoomError, match=words):
        play(tmp_path, script, "hi", name="s.py")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("replies:\n  - text: [a", r"s\.yaml:\d: not valid YAML"),
        ("", r"s\.yaml:1: a script is a list of replies"),
        ("replies: []", r"s\.yaml:1: a script is a list of replies"),
        ("replies: [a]\nloop: true", r"s\.yaml:2: 'loop' is unknown: choose from replies, repeat, default"),
        ("- a\n- txt: b", r"s\.yaml:2: 'txt' is unknown in a reply"),
        (
            "- a\n- b\n- {fail: nonsense}",
            r"s\.yaml:3: fail\.fault must be 'rate_limit', .*, not 'nonsense'",
        ),
        ("- {fail: {times: 2}}", r"s\.yaml:1: fail\.fault must be 'rate_limit'"),
        ("- {fail: {fault: server, how: loudly}}", r"fail\.how must be 'status', .* or 'hang', not 'loudly'"),
        ("- {stop: soon}", r"stop must be 'end', .*, not 'soon'"),
        ("- {text: 5}", r"text must be a valid string, not 5"),
        ("- {latency: -1}", r"latency must be greater than or equal to 0, not -1"),
        ("- {chunk: 0}", r"chunk must be greater than or equal to 1, not 0"),
        ("- {when: {regex: '('}}", r"regex '\(' is broken"),
        ("- {tool_calls: [{arguments: {}}]}", r"a tool call needs a name"),
        ("- {tool_calls: [{name: t, arguments: [1]}]}", r"arguments must be a mapping"),
        ("- 7", r"s\.yaml:1: a reply must be a mapping or a text, not int"),
    ],
)
def test_a_broken_yaml_script_is_reported_with_file_and_line(tmp_path, script, words):
    with pytest.raises(RoomError, match=words):
        play(tmp_path, script, "hi")


def test_a_file_of_another_kind_is_no_script(tmp_path):
    with pytest.raises(RoomError, match=r"s\.toml: a script is a \.yaml or a \.py file"):
        play(tmp_path, "a", "hi", name="s.toml")


def test_a_file_that_is_not_text_is_reported(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RoomError, match=r"s\.yaml: cannot be read as YAML"):
        load(path)


def test_a_changed_script_is_read_again(tmp_path):
    shelf = ScriptFolder(tmp_path)
    a_script(tmp_path, "[old]", "s.yaml")
    assert shelf.script("s.yaml")(a_prompt("hi"), 1).text == "old"
    a_script(tmp_path, "[newer]", "s.yaml")
    assert shelf.script("s.yaml")(a_prompt("hi"), 1).text == "newer"


def test_a_script_broken_under_a_running_worker_fails_the_call(tmp_path):
    a_script(tmp_path, "[{txt: a}]", "s.yaml")
    with pytest.raises(ModelFailed, match="'txt' is unknown"):
        ModelCatalog(environ={}, scripts=tmp_path).complete(an_agent("scripted:s.yaml"), a_prompt("hi"), abort=Calm())


@pytest.mark.parametrize("name", ["../out.yaml", "sub/../../out.yaml", "{outside}", "link.yaml", "linked/out.yaml"])
def test_a_script_outside_the_room_is_refused(tmp_path, name):
    room, outside = tmp_path / "room", tmp_path / "out.yaml"
    room.mkdir()
    outside.write_text("[{text: stolen}]")
    (room / "link.yaml").symlink_to(outside)
    (room / "linked").symlink_to(tmp_path)
    model = f"scripted:{name.format(outside=outside)}"
    catalog = ModelCatalog(environ={}, scripts=room)

    with pytest.raises(RoomError, match="a script must be inside the room"):
        catalog.check(an_agent(model))
    with pytest.raises(ModelFailed, match="a script must be inside the room"):
        catalog.complete(an_agent(model, model_retries=0), a_prompt("hi"), abort=Calm())


@pytest.mark.parametrize("moved", ["s.yaml", "sub"])
def test_a_script_that_was_read_and_is_now_behind_a_link_that_leads_out_is_refused(tmp_path, moved):
    room = tmp_path / "room"
    (room / "sub").mkdir(parents=True)
    name = "s.yaml" if moved == "s.yaml" else "sub/s.yaml"
    a_script(room / "sub", "[old]", "s.yaml")
    a_script(room, "[old]", "s.yaml")
    shelf = ScriptFolder(room)
    assert shelf.script(name)(a_prompt("hi"), 1).text == "old"

    (room / moved).rename(tmp_path / moved)  # the same file, so that nothing of it differs
    (room / moved).symlink_to(tmp_path / moved)

    with pytest.raises(RoomError, match="a script must be inside the room"):
        shelf.script(name)


def test_a_link_that_leads_in_a_circle_is_a_fault_of_the_room(tmp_path):
    (tmp_path / "s.yaml").symlink_to(tmp_path / "s.yaml")

    with pytest.raises(RoomError, match="cannot be read"):
        ModelCatalog(environ={}, scripts=tmp_path).check(an_agent("scripted:s.yaml"))


def test_links_within_the_room_and_rooms_behind_a_link_are_fine(tmp_path):
    room = tmp_path / "room"
    (room / "scripts").mkdir(parents=True)
    (room / "scripts" / "s.yaml").write_text("[{text: here}]")
    (room / "s.yaml").symlink_to(room / "scripts" / "s.yaml")
    (tmp_path / "current").symlink_to(room)
    catalog = ModelCatalog(environ={}, scripts=tmp_path / "current")

    assert catalog.complete(an_agent("scripted:s.yaml"), a_prompt("hi"), abort=Calm()).text == "here"


def test_python_is_run_for_the_agents_own_file_only(tmp_path):
    mark = tmp_path / "it-ran"
    a_script(
        tmp_path,
        f"import pathlib\npathlib.Path({str(mark)!r}).touch()\ndef reply(prompt, attempt): return 'ran'",
        "s.py",
    )
    a_script(tmp_path, "[{text: yaml}]", "s.yaml")
    catalog = ModelCatalog(environ={}, scripts=tmp_path)
    overridden = replace(an_agent("scripted:s.yaml", model_retries=0), model="scripted:s.py")

    with pytest.raises(ModelFailed, match="is code to be run: only the agent's own file may name it"):
        catalog.complete(overridden, a_prompt("hi"), abort=Calm())

    assert not mark.exists()
    named = replace(overridden, named_models=("scripted:s.yaml", "scripted:s.py"))
    assert catalog.complete(named, a_prompt("hi"), abort=Calm()).text == "ran"
