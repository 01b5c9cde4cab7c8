"""Answers checked against the JSON Schema that whoever asked laid down."""

from __future__ import annotations

from typing import Any

from chordage.orchestrator.core.errors import InvalidDecision


def complaint_about(value: Any, schema: dict[str, Any]) -> str | None:
    """Why the value does not fit, in words; None when it does."""
    from jsonschema import Draft202012Validator  # heavy: only who decides pays for it
    from jsonschema.exceptions import SchemaError, best_match

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise InvalidDecision(f"the question has a schema that is none: {error.message}", field="schema") from error
    worst = best_match(Draft202012Validator(schema).iter_errors(value))
    if worst is None:
        return None
    where = ".".join(str(part) for part in worst.absolute_path)
    return f"{where}: {worst.message}" if where else str(worst.message)
