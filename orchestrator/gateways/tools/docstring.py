"""What a docstring tells the model: the whole text as the tool's description, and a text for each parameter.

Google, NumPy, reST and Epydoc style. Parameters leave the description, because their texts stand in the schema; so do
the exceptions, which the model never sees.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field

import docstring_parser
from docstring_parser import DocstringParam, DocstringRaises


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read(docstring: str | None) -> Described:
    text = docstring or ""
    try:
        parsed = docstring_parser.parse(text)
    except (docstring_parser.ParseError, LookupError, ValueError):  # it raises IndexError on some malformed sections
        return Described(description=inspect.cleandoc(text))
    parameters = {param.arg_name: " ".join((param.description or "").split()) for param in parsed.params}
    parsed.meta = [part for part in parsed.meta if not isinstance(part, DocstringParam | DocstringRaises)]
    return Described(description=docstring_parser.compose(parsed).strip(), parameters=parameters)
