"""Checks structured results against the output schema of their tool. Pure.

Official clients throw away a whole result that the schema does not admit, or that has no structured
content though the tool has a schema (2025-11-25, server/tools#output-schema). Many servers list
schemas that their results do not fit. What can be mended without a guess is; else the result says
in its `_meta` that it does not fit, so that a front can pass it on in a form that clients take.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import msgspec

from leaseway.data_plane.core.tools.schema_check import SchemaCheck, SchemaNotCompiled
from leaseway.wire.bounds import KIB
from leaseway.wire.messages.mcp import UNFIT_KEY
from leaseway.wire.messages.portable_json import is_deep

MAX_CHECKED: Final = 64 * KIB
"""Bytes of a result; longer ones are not checked."""

_QUICK: Final = 4 * KIB
"""Bytes of a definition whose output schema is compiled on the event loop."""

_RawMembers = dict[str, msgspec.Raw]
_members: Final = msgspec.json.Decoder(_RawMembers).decode
_value: Final = msgspec.json.Decoder().decode
_raw: Final = msgspec.Raw
_encode: Final = msgspec.json.encode


class _Text(msgspec.Struct, tag_field="type", tag="text"):
    text: str


_only_text: Final = msgspec.json.Decoder(tuple[_Text]).decode


class StructuredCheck:
    """Checks the results of one tool.

    Args:
        definition: The tool as its server listed it, with an output schema, as JSON. The schema is
            compiled for the first call.

    Attributes:
        was_reported: Whether operators were told that results do not fit.
    """

    __slots__ = ("_check", "_definition", "was_reported")

    def __init__(self, definition: bytes) -> None:
        self._definition = definition
        self._check: SchemaCheck | None = None
        self.was_reported = False

    def fitted(self, payload: bytes, *, is_error: bool = False) -> tuple[bytes, str]:
        """Return a result as its schema admits it, and why it does not; empty if it does.

        Nulls of optional properties are left out, and structured content is taken from a text
        that is that. A result that does not fit keeps all that it has.

        Args:
            payload: A result.
            is_error: Whether it is an error: it needs no structured content, but clients in
                JavaScript reject one with structured content that does not fit.
        """
        check = self.compiled()
        if check is None or len(payload) > MAX_CHECKED:
            return payload, ""
        try:
            members = _members(payload)
            if members.get("resultType", b'"complete"') != b'"complete"':
                return payload, ""  # a question to the client
            if is_error and members.get("structuredContent", b"null") == b"null":
                return payload, ""
            return _fitted(check, members, payload)
        except (ValueError, RecursionError):  # such as an integer of thousands of digits
            return payload, ""

    @property
    def is_slow(self) -> bool:
        """Whether `compiled` may take long: call it in a thread."""
        return len(self._definition) > _QUICK

    def compiled(self) -> SchemaCheck | None:
        """Return the compiled schema; None if it does not compile, so that nothing is checked."""
        definition = self._definition
        if definition:
            with suppress(SchemaNotCompiled):
                schema = _members(definition)["outputSchema"]
                self._check = SchemaCheck(_value(schema), formats=True)  # as JavaScript does
            self._definition = b""  # last: a call may come while a thread compiles
        return self._check


def _fitted(check: SchemaCheck, members: _RawMembers, payload: bytes) -> tuple[bytes, str]:
    given = bytes(members.get("structuredContent", b""))
    value = _value(given or b"null")
    if given and (is_deep(given, value) or _accepts(check, given, value)):
        return payload, ""
    if value is None:
        if "content" not in members:
            return payload, ""  # no result of a call that has ended
        said = _said(check, members["content"])
        if said:
            return _encode({**members, "structuredContent": _raw(said)}), ""
        return _marked(members, "it has no structured content")
    if isinstance(value, dict) and b"null" in given:
        without = check.without_nulls(value)
        if check.accepts(without):
            return _encode({**members, "structuredContent": without}), ""
    path, message = next(iter(check.violations(value)), ("$", "it does not match"))
    return _marked(members, f"{path}: {message}")


def _said(check: SchemaCheck, content: msgspec.Raw) -> bytes:
    """Return the structured content that the only text of a result is; empty if it is none."""
    try:
        (only,) = _only_text(content)
        said = only.text.encode()
        value = _value(said)
    except (ValueError, RecursionError):  # several, of another type, or no JSON
        return b""
    is_fit = not is_deep(said, value) and check.is_limited(said, value) and check.accepts(value)
    return said if is_fit else b""


def _accepts(check: SchemaCheck, given: bytes, value: Any) -> bool:
    """Return whether a value fits, or cannot be checked in little time."""
    return not check.is_limited(given, value) or check.accepts(value)


def _marked(members: _RawMembers, why: str) -> tuple[bytes, str]:
    meta = _value(members["_meta"]) if "_meta" in members else {}
    if not isinstance(meta, dict):
        meta = {}
    return _encode({**members, "_meta": {**meta, UNFIT_KEY: why}}), why
