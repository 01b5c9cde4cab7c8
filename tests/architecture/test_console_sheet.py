"""The sheet of the console: every rule is for something that a page has, and the map of the keys is what they do."""

from __future__ import annotations

import re
from itertools import chain

import pytest

from chordage.orchestrator.console.pages import HERE
from chordage.orchestrator.views.model_view import SpeakerRole
from chordage.orchestrator.views.threads import RemarkRole
from support.repository import ROOT

SHEET = HERE / "static" / "console.css"
TEMPLATES = sorted((HERE / "templates").rglob("*.html"))
OF_MARKDOWN = {"a", "code", "h1", "h2", "h3", "ol", "pre", "table", "td", "th", "thead", "tbody", "tr", "ul"}
ROLES = " ".join([*RemarkRole, *SpeakerRole])
EVERY_ROLE = re.compile(r"\{\{ \w+\.role\.value \}\}")


def selectors(sheet):
    """What stands before each block that is no at-rule, without strings and comments."""
    text = re.sub(r"/\*.*?\*/", "", sheet, flags=re.DOTALL)
    text = re.sub(r"@keyframes [^{]+\{(?:[^{}]|\{[^}]*\})*\}", "", text)
    return [found.strip() for found in re.findall(r"(?:^|[{}])\s*([^{}@]+?)\s*(?=\{)", text)]


def names(pattern, sheet):
    return {name for selector in selectors(sheet) for name in re.findall(pattern, re.sub(r'"[^"]*"', "", selector))}


def words_of_the_code():
    """What may be put into the name of a class: values of enums and other words in quotes, and words of templates."""
    sources = chain((ROOT / "orchestrator").rglob("*.py"), TEMPLATES)
    quoted = chain.from_iterable(
        re.findall(r"""["']([a-z]+(?:[ _-][a-z]+)*)["']""", file.read_text()) for file in sources
    )
    return {re.sub("[ _]", "-", word) for word in quoted}


@pytest.fixture(scope="module")
def pages():
    scripts = [(HERE / "static" / name).read_text() for name in ("console.js", "theme.js")]
    return "\n".join([*(file.read_text() for file in TEMPLATES), *scripts])


@pytest.fixture(scope="module")
def classes(pages):
    """Classes as they are written, and the beginnings of those that a value ends."""
    whole, begun = set(), set()
    for attribute in re.findall(r'class="([^"]*)"', pages):
        text = EVERY_ROLE.sub(ROLES, attribute)
        whole.update(re.findall(r"'([a-z][\w-]*)'", text))
        begun.update(re.findall(r"([a-z]+-)\{\{", text))
        whole.update(re.findall(r"[a-z][\w-]*", re.sub(r"[\w-]*\{\{.*?\}\}|\{%.*?%\}", " ", text)))
    whole.update(re.findall(r"classList\.\w+\('([\w-]+)'", pages))
    return whole, begun


def test_every_class_in_the_sheet_is_on_some_page(classes):
    whole, begun = classes
    words = words_of_the_code()
    made = {name for name in names(r"\.([a-z][\w-]*)", SHEET.read_text()) if f"{name.partition('-')[0]}-" in begun
            and name.partition("-")[2] in words}  # fmt: skip

    unused = names(r"\.([a-z][\w-]*)", SHEET.read_text()) - whole - made

    assert not unused, f"nothing has the class {sorted(unused)}: delete its rule in {SHEET.name}"


def test_every_id_and_attribute_in_the_sheet_is_on_some_page(pages):
    ids = names(r"#([a-z][\w-]*)", SHEET.read_text()) - set(re.findall(r'\bid="([\w-]+)"', pages))
    attributes = names(r"\[([a-z-]+)", SHEET.read_text())
    unused = {name for name in attributes if name not in pages and name != "data-theme"}

    assert not ids | unused, f"nothing has {sorted(ids | unused)}: delete its rule in {SHEET.name}"


def test_every_element_in_the_sheet_is_on_some_page(pages):
    elements = names(r"(?<![\w.#:\[-])([a-z][a-z0-9]*)(?![\w-]*[=\]])", SHEET.read_text())

    unused = elements - set(re.findall(r"<([a-z][a-z0-9]*)", pages)) - OF_MARKDOWN

    assert not unused, f"no page has the element {sorted(unused)}: delete its rule in {SHEET.name}"


def test_map_of_the_keys_lists_exactly_those_that_work():
    script = (HERE / "static" / "console.js").read_text()
    places = re.search(r"const places = \{(.*?)\};", script)[1]
    actions = re.search(r"const actions = \{(.*?)\n  \};", script, re.DOTALL)[1]
    work = {f"g {key}" for key in re.findall(r"(\w): '/", places)}
    work |= {key.strip("'") for key in re.findall(r"(?:^|, |\n)\s*('[/?]'|[A-Za-z]|Enter|Escape): ", actions)}

    page = (HERE / "templates" / "parts" / "keys.html").read_text()
    listed = set()
    for keys in re.findall(r"\('([^']+)', '[^']+'\)", page):
        listed |= {keys} if keys.startswith("g ") else set(keys.split())

    assert {key.replace("Esc", "Escape") for key in listed} == work


def test_htmx_begins_when_all_of_its_extensions_are_there():
    """A deferred htmx begins at the next chance, with or without the script behind it: then a page is not live, and its
    attributes are not checked for their nonce.
    """
    base = (HERE / "templates" / "base.html").read_text()
    scripts = re.findall(r"<script ([^>]*vendor/[^>]*)>", base)

    assert [re.search(r"vendor/(.+?)-\d", script)[1] for script in scripts] == ["htmx", "hx-csp", "hx-sse", "hx-upsert"]
    assert not [script for script in scripts if re.search(r"\b(defer|async)\b", script)]
    assert base.index("{% block main %}") < base.index("vendor/htmx")
