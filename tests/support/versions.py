"""The lowest versions that pyproject.toml allows, as constraints for pip.

python tests/support/versions.py > lowest.txt && pip install -e '.[test]' -c lowest.txt
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = ("embedded", "postgres", "mcp", "encryption")


def lowest(extras: tuple[str, ...] = EXTRAS) -> dict[str, str]:
    """By name, what ">=" or "==" says of what is required."""
    tables = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    lines = [*tables["dependencies"], *(line for extra in extras for line in tables["optional-dependencies"][extra])]
    return {
        canonicalize_name(requirement.name): part.version
        for requirement in map(Requirement, lines)
        for part in requirement.specifier
        if part.operator in {">=", "=="}
    }


if __name__ == "__main__":
    for name, version in lowest().items():
        print(f"{name}=={version}")
