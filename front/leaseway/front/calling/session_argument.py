"""The session as an argument of leased tools, for clients whose protocol has no sessions. Pure.

Models pass arguments, and nothing else. So a leased tool is listed with one more optional property.
The result of a first call says the session's handle, and a call that passes it continues there. The
argument is taken off before the server sees the call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from leaseway.front.protocol.envelope import ESCAPE
from leaseway.front.protocol.messages import encode
from leaseway.front.sessions.sealing import is_handle
from leaseway.wire.json_pointer import at_fragment
from leaseway.wire.messages.json_schema import CHOICES, CONDITIONS

META_KEY: Final = "leaseway/session"
"""The key of `_meta` with the handle, in requests and in the result of a first call."""
_PROPERTY: Final = {
    "type": "string",
    "description": (
        "To keep the state of earlier calls, pass back the session that the last result gave."
    ),
}
_OUTPUT_PROPERTY: Final = {
    "type": "string",
    "description": "The session to pass back in the next calls; only in the result of a first one.",
}
_MAX_SUBSCHEMAS: Final = 200
"""Subschemas of one tool that are changed; a tool with more gets no argument."""
_MAX_DEPTH: Final = 20
_MAX_PATTERN: Final = 64
_MAX_REPEATS: Final = 3
"""Characters of a pattern that is tried, and groups and repetitions in it."""
_BRANCHES: Final = frozenset(CONDITIONS)
_DEPENDENT: Final = {"dependentSchemas", "dependencies"}
_CLOSING: Final = ("additionalProperties", "unevaluatedProperties")
_NAMING: Final = ("dependentRequired", "dependentSchemas", "dependencies")
_FIXED: Final = frozenset({"const", "enum", "$dynamicRef", "$recursiveRef"})

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class InvalidSessionArgument(Exception):
    """The argument for the session is none of this client; its message is for the model."""


class _NotExtendable(Exception):
    """A schema that has a property of this name already, or may not admit one more."""


def argument_names(preferred: str) -> Iterator[str]:
    """Return the names that the argument may have, the best first."""
    yield preferred
    yield f"leaseway_{preferred}"


def with_argument(schema: dict[str, Any], preferred: str) -> tuple[dict[str, Any], str] | None:
    """Return a tool's input schema with the argument, and the argument's name.

    Returns:
        None if the schema has properties of all names, admits no others (`enum`), or refers to
        what only its server can resolve.
    """
    for name in argument_names(preferred):
        try:
            return _Extension(schema, name).root(_PROPERTY), name
        except _NotExtendable:
            continue
    return None


def with_output(schema: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return a tool's output schema with the session, or None if it does not admit one."""
    if schema.get("type") != "object":
        return None
    try:
        return _Extension(schema, name).root(_OUTPUT_PROPERTY)
    except _NotExtendable:
        return None


def has_argument(arguments: bytes, preferred: str) -> bool:
    """Return whether a call's arguments have one of the names that the argument may have."""
    try:
        members = _members(arguments)
    except (ValueError, RecursionError):
        return True  # whoever reads them reports the error
    return not members.keys().isdisjoint(argument_names(preferred))


def take_argument(arguments: bytes, name: str) -> tuple[bytes, str]:
    """Take the session off a call's arguments.

    Args:
        arguments: A JSON object.
        name: The name of the argument.

    Returns:
        The other arguments, and the session; empty if there is none.

    Raises:
        InvalidSessionArgument: It is not a string.
    """
    if name.encode() not in arguments and ESCAPE not in arguments:
        return arguments, ""
    try:
        members = _members(arguments)
    except (ValueError, RecursionError):
        return arguments, ""  # the worker reports the error
    value = members.pop(name, None)
    if value is None:
        return arguments, ""
    try:
        session = msgspec.json.decode(value, type=str | None) or ""
    except ValueError:
        text = f"{name} must be a session: a string that an earlier result gave."
        raise InvalidSessionArgument(text) from None
    return encode(members), session


def take_handle(arguments: bytes, name: str) -> tuple[bytes, str]:
    """Take a handle off the arguments of a call whose client was not shown the argument.

    The argument may then be one of the tool that its schema does not name. So only what has the
    form of a handle is taken, also if nobody made it; anything else is left to the server.

    Args:
        arguments: A JSON object.
        name: The name of the argument.

    Returns:
        The other arguments, and the handle; empty if there is none.
    """
    try:
        others, session = take_argument(arguments, name)
    except InvalidSessionArgument:
        return arguments, ""
    return (others, session) if is_handle(session) else (arguments, "")


def announce(payload: bytes, handle: str, name: str, *, is_structured: bool) -> bytes:
    """Return the result of a first call with the session that it began.

    Args:
        payload: The result; only one that is complete is changed.
        handle: The handle of the session.
        name: The name of the argument that takes it.
        is_structured: Whether structured content may have the session as one more member.
    """
    try:
        members: dict[str, Any] = dict(_members(payload or b"{}"))
        if members.get("resultType", msgspec.Raw(b'"complete"')) != msgspec.Raw(b'"complete"'):
            return payload
        content = bytes(members.get("content", b"[]")).strip()
        if not content.startswith(b"["):
            return payload
        meta = msgspec.json.decode(members.get("_meta", b"{}"), type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return payload
    # Some hosts, such as Copilot CLI, join the texts of a result without anything between.
    text = f'\nSession: {handle}\nTo keep this state, pass it as "{name}" in the next calls.'
    # Behind the other items, which may be too many to take them apart.
    others, item = content[:-1].rstrip(), encode({"type": "text", "text": text})
    members["content"] = msgspec.Raw(b"%b%b%b]" % (others, b"" if others == b"[" else b",", item))
    members["_meta"] = {**meta, META_KEY: handle}
    structured = bytes(members.get("structuredContent", b""))
    if is_structured and structured.startswith(b"{"):
        own = _members(structured)
        if name not in own:
            members["structuredContent"] = {**own, name: handle}
    return encode(members)


class _Extension:
    """Adds one property to a schema, wherever the schema would refuse it.

    Args:
        schema: The schema, to which local references are relative.
        name: The name of the property.

    Raises:
        _NotExtendable: By its methods.
    """

    def __init__(self, schema: dict[str, Any], name: str) -> None:
        self._schema = schema
        self._name = name
        self._left = _MAX_SUBSCHEMAS

    def root(self, definition: dict[str, Any]) -> dict[str, Any]:
        extended = self._admit(self._schema, 0)
        properties = extended.get("properties", {})
        return {**extended, "properties": {**properties, self._name: definition}}

    def _admit(self, schema: Any, depth: int) -> Any:
        """Return a schema that applies to the arguments themselves and does not see the property.

        It holds for exactly those arguments, with the property or without, for which the given one
        holds without; so it may also stand in `not`, `if` and `oneOf`.
        """
        if isinstance(schema, bool):
            return schema
        self._left -= 1
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or self._left < 0:
            raise _NotExtendable
        self._check_free(schema)
        extended = {**schema, **self._admit_parts(schema, depth)}
        if any(schema.get(keyword, True) is not True for keyword in _CLOSING):
            extended["properties"] = {**schema.get("properties", {}), self._name: {}}
        if "propertyNames" in schema:
            extended["propertyNames"] = {"anyOf": [schema["propertyNames"], {"const": self._name}]}
        self._admit_counts(extended, schema)
        if "$ref" in schema:
            self._admit_reference(extended, schema["$ref"], depth)
        return extended

    def _admit_counts(self, extended: dict[str, Any], schema: dict[str, Any]) -> None:
        """Let the property not count: neither as one too many, nor as one that was missing."""
        least, most = (_count(schema, f"{bound}Properties") for bound in ("min", "max"))
        condition: dict[str, Any] = {"if": {"required": [self._name]}}
        if least:
            condition["then"] = {"minProperties": least + 1}
        if most is not None:
            extended["maxProperties"] = most + 1
            condition["else"] = {"maxProperties": most}
        if len(condition) == 1:
            return
        if extended.keys().isdisjoint(("if", "then", "else")):
            extended.update(condition)
        else:
            extended["allOf"] = [*extended.get("allOf", []), condition]

    def _admit_parts(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        """Return the keywords whose schemas apply to the arguments themselves, admitting."""
        parts: dict[str, Any] = {}
        for keyword in schema.keys() & set(CHOICES):
            parts[keyword] = self._admit_all(schema[keyword], depth)
        for keyword in schema.keys() & _BRANCHES:
            parts[keyword] = self._admit(schema[keyword], depth + 1)
        for keyword in schema.keys() & _DEPENDENT:
            parts[keyword] = {
                name: dependent
                if isinstance(dependent, list)
                else self._admit(dependent, depth + 1)
                for name, dependent in schema[keyword].items()
            }
        return parts

    def _admit_all(self, schemas: Any, depth: int) -> list[Any]:
        if not isinstance(schemas, list):
            raise _NotExtendable
        return [self._admit(schema, depth + 1) for schema in schemas]

    def _admit_reference(self, extended: dict[str, Any], reference: Any, depth: int) -> None:
        """Put the referenced schema in the place of a reference if it must be changed."""
        target = self._resolve(reference)
        admitting = self._admit(target, depth + 1)
        if admitting == target:
            return
        if "$id" in target:
            raise _NotExtendable  # its references are relative to it
        del extended["$ref"]
        if extended.keys().isdisjoint(admitting):
            extended.update(admitting)
        else:
            extended["allOf"] = [*extended.get("allOf", []), admitting]

    def _resolve(self, reference: Any) -> Any:
        target = at_fragment(self._schema, reference)
        if not isinstance(target, dict):
            raise _NotExtendable
        return target

    def _check_free(self, schema: dict[str, Any]) -> None:
        """Check that a schema says nothing about the property yet, and may admit it."""
        if not _FIXED.isdisjoint(schema):
            raise _NotExtendable
        named = [*_mapping(schema, "properties")]
        for keyword in _NAMING:
            for name, value in _mapping(schema, keyword).items():
                named += [name, *(value if isinstance(value, list) else ())]
        required = schema.get("required")
        named += required if isinstance(required, list) else []
        if self._name in named:
            raise _NotExtendable
        if any(
            _may_match(pattern, self._name) for pattern in _mapping(schema, "patternProperties")
        ):
            raise _NotExtendable


def _may_match(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a name, or could take long to try."""
    if len(pattern) > _MAX_PATTERN or sum(map(pattern.count, "*+?{(")) > _MAX_REPEATS:
        return True
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return True


def _count(schema: dict[str, Any], keyword: str) -> int | None:
    """Return the value of a keyword that counts properties, or None."""
    value = schema.get(keyword)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _NotExtendable
    return value


def _mapping(schema: dict[str, Any], keyword: str) -> dict[str, Any]:
    value = schema.get(keyword, {})
    if not isinstance(value, dict):
        raise _NotExtendable
    return value
