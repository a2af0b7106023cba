"""JSON Schemas and annotations that the kit's tools share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

READ_ONLY: Final = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}
MAX_PATH: Final = 4_096
PATH: Final = {"type": "string", "minLength": 1, "maxLength": MAX_PATH}


def arguments_schema(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def result_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a structured result, in which all properties are required."""
    return {"type": "object", "properties": dict(properties), "required": list(properties)}
