"""What an agent file may say, and how each mistake in it is reported: file, line, key, and what to do."""

from __future__ import annotations

import pytest

from chordage import RoomError, UnknownAgent
from chordage.orchestrator.core.agent import AgentSpec, Limits
from chordage.orchestrator.gateways.room.agents import Room

EVERYTHING = """
name = "librarian"
model = "anthropic:big"
fallbacks = ["openai:other"]
instructions = "Be brief."
tools = ["my_tools:search", "builtin:calculate"]
strategy = "direct"
concurrency = 4
tenant = "library"
stream = false
prompt_cache = false
model_timeout = 30
model_retries = 0

[limits]
max_rounds = 7
timeout = 90.5
max_tool_calls = 40

[params]
temperature = 0.2
stop = ["END"]

[models.local]
wire = "openai"
base_url = "http://127.0.0.1:8080/v1"
api_key_env = "LOCAL_KEY"
"""


def fault(folder, text, name="agent.toml"):
    folder.agent(text, name)
    with pytest.raises(RoomError) as refusal:
        folder.open().get(None)
    return str(refusal.value)


def test_every_key_reaches_the_definition(folder):
    folder.agent(EVERYTHING)
    assert folder.open().get(None) == AgentSpec(
        name="librarian",
        model="anthropic:big",
        fallbacks=("openai:other",),
        instructions="Be brief.",
        tools=("my_tools:search", "builtin:calculate"),
        strategy="direct",
        limits=Limits(max_rounds=7, timeout=90.5, max_tool_calls=40),
        params={"temperature": 0.2, "stop": ["END"]},
        concurrency=4,
        model_timeout=30.0,
        model_retries=0,
        stream=False,
        prompt_cache=False,
        tenant="library",
    )


def test_a_model_is_all_it_takes(folder):
    folder.agent('model = "m"')
    assert folder.open().get(None) == AgentSpec(name="agent", model="m")


def test_providers_are_distinguished_by_name(folder):
    folder.agent(EVERYTHING)
    folder.agent('model = "m"\n[models.other]\nwire = "anthropic"\n', "agents/second.toml")
    assert folder.open().providers() == {
        "local": {"wire": "openai", "base_url": "http://127.0.0.1:8080/v1", "api_key_env": "LOCAL_KEY"},
        "other": {"wire": "anthropic"},
    }


def test_provider_may_have_more_or_fewer_settings(folder):
    said = {"headers": {"X-Team": "a"}, "silence": 5, "max_tokens_key": "max_completion_tokens"}
    folder.agent(
        'model = "m"\n[models.openai]\nheaders = { X-Team = "a" }\nsilence = 5\n'
        'max_tokens_key = "max_completion_tokens"\n'
    )
    assert folder.open().providers() == {"openai": said}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('base_url = "ftp://x"', "base_url: must start with http"),
        ("base_url = 7", "base_url: must start with http"),
        ('key = "sk"', "key: there is no such key; "),
        ("silence = true", "silence: must be a number of seconds, more than 0"),
        ("silence = 0", "silence: must be a number of seconds, more than 0"),
        ("headers = { a = 1 }", "headers: must be a table of texts"),
    ],
)
def test_a_wrong_value_of_a_provider_is_refused_with_its_line(folder, line, words):
    folder.agent(f'model = "m"\n[models.acme]\n{line}\n')
    with pytest.raises(RoomError, match=rf"agent\.toml:3: .*{words}"):
        folder.open().get(None)


def test_a_provider_must_be_a_table(folder):
    folder.agent('model = "m"\nmodels.acme = "http://x"\n')
    with pytest.raises(RoomError, match=r"agent\.toml:2: .*must be a table"):
        folder.open().get(None)


def test_instructions_may_be_in_a_file(folder):
    folder.write("prompts/brief.md", "Be brief.\n")
    folder.agent('model = "m"\ninstructions_file = "prompts/brief.md"')
    assert folder.open().get(None).instructions == "Be brief.\n"


def test_a_file_with_a_byte_order_mark_is_fine(folder):
    folder.agent('\ufeffmodel = "m"')
    assert folder.open().get(None).model == "m"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "x"', "agent.toml:1: model: is missing; write `model = ...`, a text that is not blank"),
        ('\nmodel = ""', "agent.toml:2: model: must be a text that is not blank; got ''"),
        (
            'model = "m"\n\n[limits]\nmax_rounds = 0',
            "agent.toml:4: limits.max_rounds: must be a whole number, 1 or more, or leave it out; got 0",
        ),
        (
            'model = "m"\nlimits.max_rounds = true',
            "agent.toml:2: limits.max_rounds: must be a whole number, 1 or more, or leave it out; got True",
        ),
        (
            'model = "m"\nlimits = { timeout = -1 }',
            "agent.toml:2: limits.timeout: must be a number of seconds, more than 0",
        ),
        ('model = "m"\nlimits = 5', "agent.toml:2: limits: must be a table, or leave it out; got 5"),
        (
            'model = "m"\n[limits]\nrounds = 5',
            "agent.toml:3: limits.rounds: there is no such key; did you mean max_rounds?",
        ),
        (
            'model = "m"\n[limits]\nmax_rounds = 5\ntool_mode = "parallel"',
            "agent.toml:4: limits.tool_mode: there is no such key; write tool_mode above the first [table] of the file",
        ),
        (
            'model = "m"\nzzz = 1',
            "agent.toml:2: zzz: there is no such key; there are: agents, compaction, concurrency, fallbacks, ",
        ),
        ('modle = "m"\nmodel = "m"', "agent.toml:1: modle: there is no such key; did you mean model?"),
        (
            'model = "m"\nname = "two words"',
            "agent.toml:2: name: must be 1 to 64 letters, digits, _ . or -; got 'two words'",
        ),
        (
            'model = "m"\nstrategy = "raect"',
            "agent.toml:2: strategy: must be one of direct, plan_execute, react, or module:function; got 'raect'",
        ),
        (
            'model = "m"\ntools = "x:y"',
            'agent.toml:2: tools: must be a list of texts, like ["one", "two"], or leave it out',
        ),
        (
            'model = "m"\ntools = [\n "a:b",\n "c:d",\n "a:b",\n]',
            "agent.toml:3: tools: 'a:b' is listed twice; keep one",
        ),
        ('model = "m"\nfallbacks = [""]', "agent.toml:2: fallbacks: must be a list of texts"),
        (
            'model = "m"\nconcurrency = 0',
            "agent.toml:2: concurrency: must be a whole number, 1 or more, or leave it out; got 0",
        ),
        ('model = "m"\nstream = "yes"', "agent.toml:2: stream: must be true or false, or leave it out; got 'yes'"),
        ('model = "m"\nmodel_timeout = inf', "agent.toml:2: model_timeout: must be a number of seconds, more than 0"),
        ('model = "m"\nmodel_retries = -1', "agent.toml:2: model_retries: must be a whole number, 0 or more"),
        ('model = "m"\n[params]\nday = 2026-01-01', "agent.toml:3: params.day: must be something JSON has: no date"),
        ('model = "m"\n[params]\nday = nan', "agent.toml:3: params.day: must be something JSON has"),
        ('model = "m"\n[models]\nx = 1', "agent.toml:3: models.x: must be a table"),
        (
            'model = "m"\n[models.x]\nbase_url = "localhost"',
            "agent.toml:3: models.x.base_url: must start with http:// or https://",
        ),
        (
            'model = "m"\n[models.x]\nsilence = 0',
            "agent.toml:3: models.x.silence: must be a number of seconds, more than 0",
        ),
        ('model = "m"\n[models.x]\nheaders = { a = 1 }', "agent.toml:3: models.x.headers: must be a table of texts"),
        ('model = "m"\n[models.x]\nkey = "s"', "agent.toml:3: models.x.key: there is no such key; "),
        (
            'model = "m"\ninstructions = "a"\ninstructions_file = "b"',
            "agent.toml:3: instructions_file: there are instructions too",
        ),
        ('model = "m"\ninstructions_file = "no.md"', "agent.toml:2: instructions_file: "),
    ],
)
def test_mistake_is_reported_with_its_place_and_remedy(folder, text, said):
    assert said in fault(folder, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('model = "m"\nname "x"\n', "agent.toml:2: this is not TOML: "),
        ('model = "m"\n\ntools = [\n"a",\n', "agent.toml:4: this is not TOML: "),
        ('model = "m"\nmodel = "n"\n', "agent.toml:2: this is not TOML: "),
    ],
)
def test_syntax_error_is_reported_with_its_line(folder, text, said):
    assert fault(folder, text).startswith(said)


def test_all_mistakes_of_a_file_are_reported_at_once(folder):
    said = fault(folder, "stream = 1\nfoo = 2\n[limits]\nmax_rounds = 0\n")
    keys = [line.split(":")[2].strip() for line in said.splitlines()]
    assert sorted(keys) == ["foo", "limits.max_rounds", "model", "stream"]


def test_a_file_that_is_not_text_is_a_fault(folder):
    (folder.path / "agent.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RoomError, match="agent.toml:1: cannot be read: 'utf-8' codec"):
        folder.open().get(None)


def test_strategies_can_be_more_than_the_usual_two(folder):
    folder.agent('model = "m"\nstrategy = "plan_execute"')
    assert folder.open(strategies=["plan_execute"]).get(None).strategy == "plan_execute"


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(RoomError, match="no such folder; a room is a folder with an agent.toml in it"):
        Room(tmp_path / "nowhere")


def test_error_of_an_empty_room_explains_what_to_write(folder):
    with pytest.raises(UnknownAgent, match="there is no agent; write an agent.toml with at least `model = ...`"):
        folder.open().get(None)
