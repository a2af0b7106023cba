"""The keywords of JSON Schema by what their values are, and the names of its types. Pure.

Whoever walks a schema, converts or checks it says by these names where schemas stand in it; what
is not named here holds data (JSON Schema 2020-12 and the older drafts that servers still send).
"""

from __future__ import annotations

from typing import Final

TYPES: Final = ("string", "number", "integer", "boolean", "array", "object", "null")
"""The names of types."""

CHOICES: Final = ("allOf", "anyOf", "oneOf")
"""Lists of schemas for the same value."""

LISTS: Final = (*CHOICES, "prefixItems")
"""All lists of schemas."""

CONDITIONS: Final = ("not", "if", "then", "else")
"""Single schemas for the same value."""

MEMBERS: Final = (
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "additionalItems",
    "unevaluatedItems",
    "contains",
)
"""Single schemas for each of a value's members, apart from `items`, which older drafts list."""

PROPERTIES: Final = ("properties", "patternProperties")
"""Schemas by the name, or its pattern, of a member."""

DEFINITIONS: Final = ("$defs", "definitions")
"""Schemas by name, for references."""

MAPS: Final = frozenset({*PROPERTIES, *DEFINITIONS, "dependentSchemas", "dependencies"})
"""All mappings whose values are schemas and whose keys are names."""

DATA: Final = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values look like schemas and are none."""

TOOL_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
"""The boolean annotations of a tool, which are not of JSON Schema (MCP, Tools)."""
