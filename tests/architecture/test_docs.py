"""What the documentation quotes exists: links, files, names of code, commands, settings, HTTP paths and imports.

An ADR quotes the tree of its day, so only its links are checked.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import click
import pytest

from chordage.config.settings import OF_CLIENTS, SECRETS_DIR, Settings, variable_of
from chordage.tasks import names
from chordage.tasks.schema import TurnMessage
from chordage.workers.cli import COMMANDS, main
from support.repository import ROOT, project
from support.sabotage import GUARDS, NOTHING

CODE = ("orchestrator", "tasks", "workers", "config", "testing")
ALL = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
PAGES = [page for page in ALL if "adr" not in page.parts]
ABOUT_CODE = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "explanation" / "architecture.md"]
OWN_SETTINGS = {"CHORDAGE_COMMAND", SECRETS_DIR}  # of examples/deploy, and of the environment alone
OF_A_ROOM = {"agent.run"}
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


def every(pages):
    return pytest.mark.parametrize("page", pages, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page):
    return FENCE.sub("", page.read_text())


def blocks(page, *languages):
    return [text for language, text in FENCE.findall(page.read_text()) if language in languages]


def spans(page):
    return SPAN.findall(prose(page))


def anchors(page):
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {NOT_IN_ANCHORS.sub("", heading.lower()).replace(" ", "-") for heading in headings}


def test_page_about_failures_lists_the_guards_that_are_taken_out():
    page = (ROOT / "docs" / "explanation" / "failures.md").read_text()
    section = page.partition("## Guards, taken out")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| (an? .+?|what .+?|answers .+?|the .+?) \| (.+?) \|", section, re.MULTILINE)

    assert [guard for guard, _ in listed] == [name for name in GUARDS if name != NOTHING]
    for guard, seen_by in listed:
        test = GUARDS[guard].test
        assert not test or seen_by == f"`{test.partition('::')[2]}`"
        assert not test or f"def {test.partition('::')[2]}(" in (ROOT / test.partition("::")[0]).read_text()


@every(ALL)
def test_links_lead_to_a_file_and_a_heading(page):
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", prose(page))
    targets = [((page.parent / path).resolve() if path else page, anchor) for path, anchor in links]

    assert [path for path, _ in targets if not path.exists()] == []
    assert [(path.name, anchor) for path, anchor in targets if anchor and anchor not in anchors(path)] == []


def test_the_index_lists_every_page():
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / path).resolve() for path in re.findall(r"\]\(([^)#]+)", index.read_text())}

    assert {page for page in PAGES if page.parent.parent == index.parent} <= linked


def is_of_the_repository(path):
    first = Path(path).parts[0]
    return any((root / first).is_dir() for root in (ROOT, ROOT / "orchestrator"))


@every(PAGES)
def test_paths_exist(page):
    paths = [span for span in spans(page) if re.fullmatch(r"[\w.@-]+(/[\w.@-]+)*(/|\.\w+)", span) and "/" in span]
    quoted = [path for path in paths if is_of_the_repository(path)]

    assert [path for path in quoted if not any((root / path).exists() for root in (ROOT, ROOT / "orchestrator"))] == []


@cache
def modules():
    """The files of the code, by the last part of their name."""
    files = {}
    for folder in CODE:
        for file in (ROOT / folder).rglob("*.py"):
            name = file.parent.name if file.name == "__init__.py" else file.stem
            files.setdefault(name, []).append(file)
    return files


def importable(file):
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(("chordage", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def has(module, path):
    value = module
    for name in path:
        if not hasattr(value, name):
            return name in getattr(value, "__annotations__", {})
        value = getattr(value, name)
    return True


def resolves(dotted):
    first, *path = dotted.split(".")
    if first not in modules():
        return first in {"chordage", "support"} and imports(dotted)
    return any(has_or_its_class_has(importlib.import_module(importable(file)), path) for file in modules()[first])


def has_or_its_class_has(module, path):
    """`unit.follow` is a method of the class `Unit` in the module `unit`, spoken of as the variable is called."""
    owners = [
        module,
        *(value for name, value in vars(module).items() if name.lower() == module.__name__.split(".")[-1]),
    ]
    return any(has(owner, path) for owner in owners)


def imports(dotted):
    module, _, name = dotted.rpartition(".")
    for candidate, path in ((dotted, []), (module, [name])):
        try:
            return has(importlib.import_module(candidate), path)
        except ModuleNotFoundError:
            continue
    return False


CELERY_TASKS = {value for name, value in vars(names).items() if name.isupper()}


@every(ABOUT_CODE)
def test_names_of_code_resolve(page):
    """`module.name`, `module.py` and `folder/`, as they are written in pages about the code."""
    dotted = {span.removesuffix("()") for span in spans(page) if re.fullmatch(r"[a-z_]+(\.\w+)+(\(\))?", span)}
    files = {span for span in dotted if span.endswith((".py", ".md", ".toml"))}
    written = {file.name for known in modules().values() for file in known}

    assert {file for file in files if file.endswith(".py")} - written == set()
    assert {name for name in dotted - files - CELERY_TASKS - OF_A_ROOM if not resolves(name)} == set()


@every(ABOUT_CODE)
def test_layers_are_those_of_the_import_contracts(page):
    contracts = [one for one in project()["tool"]["importlinter"]["contracts"] if one["type"] == "layers"]

    assert [" > ".join(contract["layers"]) for contract in contracts] == blocks(page, "")[0].splitlines()


@every(ABOUT_CODE)
def test_code_is_quoted_from_the_source(page):
    source = [file.read_text() for known in modules().values() for file in known]

    for block in blocks(page, "python"):
        assert any(block in text for text in source), f"copy it anew from the source:\n{block}"


def commands(page):
    """Each `chordage …` of a page, in blocks for a shell and in the text, as the words of its arguments."""
    typed = "\n".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    typed += re.findall(r"^\$ (.*)$", "\n".join(blocks(page, "console")), re.MULTILINE)
    for text in [*typed, *spans(page)]:
        for part in re.split(r"&&|;|\||\$\(", text):
            words = words_of(part.strip())
            if len(words) > 1 and words[0] in {"chordage", ".venv/bin/chordage"}:
                yield words[1:]


def words_of(text):
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # an apostrophe of a sentence
        return text.split()


def fault_of(words):
    command, context = main, click.Context(main)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *rest = words
        following = command.get_command(context, name)
        if following is None and command is not main:
            break  # an argument of a group that can be called by itself
        if following is None:
            return f"no command {name}"
        command, words = following, rest
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    wrong = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known | {"--help"}]
    return f"{command.name} has no {wrong}" if wrong and command is not main else None


@every(PAGES)
def test_commands_and_their_options_exist(page):
    assert [(words, fault) for words in commands(page) if (fault := fault_of(words))] == []


def test_the_page_of_interfaces_is_complete():
    page = ROOT / "docs" / "reference" / "interfaces.md"
    _, tasks, fields, _, commands_table = page.read_text().split("\n## ")
    first_cells = re.findall(r"^\| (`[^|]+) \|", fields, re.MULTILINE)
    listed = {command for row in re.findall(r"^\| [\w ,]+ \| (.+) \|$", commands_table, re.MULTILINE)
              for command in SPAN.findall(row)}  # fmt: skip

    assert {name for cell in first_cells for name in SPAN.findall(cell)} == set(TurnMessage.model_fields)
    assert listed == set(COMMANDS)
    assert set(re.findall(r"`([a-z]+\.[a-z]+)`", tasks)) - {"result.get"} <= CELERY_TASKS


def test_log_lines_exist():
    page = (ROOT / "docs" / "how-to" / "operations.md").read_text()
    rows = re.findall(r"^\| log (.+?) \|", page, re.MULTILINE)
    source = "\n".join(file.read_text() for known in modules().values() for file in known)

    assert len(rows) > 5
    assert [line for row in rows for line in SPAN.findall(row) if line not in source] == []


@every(PAGES)
def test_settings_exist(page):
    known = {variable_of((name,)) for name in (*Settings.model_fields, *OF_CLIENTS)} | OWN_SETTINGS
    quoted = set(re.findall(r"CHORDAGE_[A-Z]+(?:_[A-Z]+)*", page.read_text()))

    assert quoted - known == set()


@every(PAGES)
def test_http_paths_exist(page):
    source = "\n".join(file.read_text() for file in (ROOT / "orchestrator").rglob("*.py"))
    known = {
        (verb.upper(), route) for verb, route in re.findall(r'@(?:app|router)\.(get|post|patch)\(\s*"([^"]+)"', source)
    }
    routes = {(verb, re.sub(r"\{\w+(:path)?\}", "*", route)) for verb, route in known}
    quoted = re.findall(r"`(GET|POST|PATCH) (/[^`?]*)[^`]*`", page.read_text())

    assert known
    assert {(verb, re.sub(r"\{\w+\}|[A-Z]+", "*", route)) for verb, route in quoted} - routes == set()


@every(PAGES)
def test_python_compiles_and_its_imports_resolve(page):
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("chordage"):
                assert [name.name for name in node.names if not imports(f"{node.module}.{name.name}")] == []


@every(PAGES)
def test_data_can_be_read(page):
    for block in blocks(page, "toml"):
        assert tomllib.loads(block) is not None
    for block in blocks(page, "json"):
        assert json.loads(block)
