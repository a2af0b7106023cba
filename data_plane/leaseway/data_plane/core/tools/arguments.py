"""Checks arguments against a tool's input schema (design.md#calls)."""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

import msgspec

from leaseway.data_plane.core.tools.schema_check import SchemaCheck
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.portable_json import has_many_values, is_deep


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError("out of range")
    return number


_SMALL_DOCUMENT: Final = 8 * bounds.KIB
_decode_small = msgspec.json.Decoder(dict[str, Any]).decode
_decode_large = msgspec.json.Decoder(dict[str, Any], float_hook=_finite).decode
"""For large documents: msgspec itself takes 40 times as long for numbers such as 1e300."""
_MEMBERS: Final = ("items", "additionalProperties")
_BRANCHES: Final = ("anyOf", "allOf")
"""Not `oneOf`: a branch that admits more can make two fit, so that none is accepted."""


class ArgumentCheck(SchemaCheck):
    """One tool's compiled input schema. Properties with a `default` are optional.

    Args:
        schema: The `inputSchema` of the tool.

    Raises:
        SchemaNotCompiled: As for any schema.
    """

    __slots__ = ()

    def _checked(self, schema: Any) -> Any:
        return _loosened(schema)


class LazyArgumentCheck:
    """Checks the arguments of one tool by its input schema, which its first call compiles.

    Args:
        definition: The tool as its server listed it, whose input schema has been compiled once.
        is_quick: Whether that may be done on the event loop.

    Attributes:
        check: The compiled schema; None before `compiled`.
    """

    __slots__ = ("_definition", "_is_quick", "check")

    def __init__(self, definition: bytes, *, is_quick: bool) -> None:
        self._definition = definition
        self._is_quick = is_quick
        self.check: ArgumentCheck | None = None

    @property
    def is_slow(self) -> bool:
        """Whether `compiled` may take long: call it in a thread."""
        return self.check is None and not self._is_quick

    def compiled(self) -> ArgumentCheck:
        """Return the compiled schema."""
        if self.check is None:
            self.check = ArgumentCheck(_decode_small(self._definition)["inputSchema"])
        return self.check


def _loosened(schema: Any) -> Any:
    """Return a copy of a schema that admits what its server does.

    No property with a `default` is required: servers that generate their schemas from types list
    such properties as required, but accept calls without them. An empty `enum` admits any value:
    servers write it that had nothing to choose from when they listed the tool.
    """
    if not isinstance(schema, dict):
        return schema
    loosened = dict(schema)
    if schema.get("enum") == []:
        del loosened["enum"]
    properties = schema.get("properties")
    if isinstance(properties, dict):
        loosened["properties"] = {
            name: _loosened(declared) for name, declared in properties.items()
        }
        required = schema.get("required")
        if isinstance(required, list):
            loosened["required"] = [name for name in required if not _has_default(properties, name)]
    for name in _MEMBERS:
        if name in schema:
            loosened[name] = _loosened(schema[name])
    for name in _BRANCHES:
        if isinstance(schema.get(name), list):
            loosened[name] = [_loosened(branch) for branch in schema[name]]
    return loosened


def _has_default(properties: dict[str, Any], name: object) -> bool:
    declared = properties.get(name) if isinstance(name, str) else None
    return isinstance(declared, dict) and "default" in declared


def parse_arguments(arguments: bytes) -> dict[str, Any]:
    """Parse a call's arguments.

    Raises:
        Fault: INVALID_ARGUMENTS: too long, too many values, too deep, not JSON, or not an object.
    """
    if len(arguments) > bounds.MAX_ARGUMENTS:
        raise oversize_arguments()
    if len(arguments) > bounds.MAX_VALUES and has_many_values(arguments):
        raise _invalid(
            f"The arguments have more than {bounds.MAX_VALUES} values and keys; pass large data by "
            "reference, for example as a path or a URL that the server can read, or as one text."
        )
    try:
        decode = _decode_small if len(arguments) <= _SMALL_DOCUMENT else _decode_large
        parsed = decode(arguments)
    except msgspec.ValidationError:
        message = "The arguments must be one JSON object with numbers in the range of a double."
    except (ValueError, RecursionError):  # an integer of thousands of digits is no DecodeError
        message = "The arguments are not well-formed JSON, or nested too deeply."
    else:
        if not is_deep(arguments, parsed):
            return parsed
        # Many servers drop such a message without an answer, so that the call would wait for it.
        message = f"The arguments are nested more than {bounds.MAX_NESTING} levels deep."
    raise _invalid(message)


def oversize_arguments() -> Fault:
    """Return the fault of arguments above `bounds.MAX_ARGUMENTS`."""
    return _invalid(
        f"The arguments exceed {bounds.MAX_ARGUMENTS // bounds.MIB} MiB; pass large data by "
        "reference, for example as a path or a URL that the server can read."
    )


def _invalid(message: str) -> Fault:
    return Fault(Reason.INVALID_ARGUMENTS, message, violations=(("$", message),))
