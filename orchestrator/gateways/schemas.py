"""JSON Schemas that somebody else has laid down, and values checked against them.

References lead nowhere but into the schema itself: a look-up would go wherever whoever wrote it says.
"""

from __future__ import annotations

from typing import Any

from chordage.orchestrator.core.errors import InvalidDecision


def validator(schema: dict[str, Any], *, of_its_own: bool = False) -> Any:
    """Draft 2020-12; `of_its_own`: or the draft that the schema names."""
    from jsonschema.validators import Draft202012Validator, validator_for  # heavy: only who needs it pays for it
    from referencing import Registry

    kind = validator_for(schema, default=Draft202012Validator) if of_its_own else Draft202012Validator
    return kind(schema, registry=Registry())


def complaint_about(value: Any, schema: dict[str, Any]) -> str | None:
    """Why the value does not fit, in words; None when it does."""
    from jsonschema.exceptions import SchemaError, best_match
    from referencing.exceptions import Unresolvable

    checks = validator(schema)
    try:
        checks.check_schema(schema)
        worst = best_match(checks.iter_errors(value))
    except SchemaError as error:
        raise InvalidDecision(f"the question has a schema that is none: {error.message}", field="schema") from error
    except Unresolvable as error:
        told = f"the question has a schema with a reference that leads nowhere: {error.ref}"
        raise InvalidDecision(told, field="schema") from error
    if worst is None:
        return None
    where = ".".join(str(part) for part in worst.absolute_path)
    return f"{where}: {worst.message}" if where else str(worst.message)
