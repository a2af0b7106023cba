"""Parse a tool call's arguments from the words of a command line. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from leaseway.wire.messages import portable_json

_MAX_CHOICES: Final = 8
"""How deep the choices of a property's schema are read."""


def parse_arguments(words: Sequence[str], stdin: str | None = None) -> dict[str, Any]:
    """Return a tool call's arguments.

    Args:
        words: None; one JSON object; `-` for a JSON object on stdin; or `key=value` words. Values
            are parsed as JSON if possible, else they are text (but see `keep_texts`).
        stdin: The content of stdin, for `-`.

    Raises:
        ValueError: The words are something else. The message never repeats a value.
    """
    words = _utf8(words)
    if not words:
        return {}
    if not are_pairs(words):
        return (
            _object(stdin or "", "stdin") if words == ["-"] else _object(words[0], "the argument")
        )
    write = 'nor a JSON object; write, for example, timezone=UTC or \'{"timezone": "UTC"}\''
    return {
        key: _value(key, text) for key, text in _pairs(words, f"neither key=value {write}").items()
    }


def are_pairs(words: Sequence[str]) -> bool:
    """Return whether the words are `key=value`, not one JSON object or `-`."""
    return len(words) != 1 or not (words[0] == "-" or words[0].lstrip().startswith("{"))


def keep_texts(
    words: Sequence[str], values: Mapping[str, Any], schema: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `key=value` arguments with texts for the properties that are strings.

    If a property's type is string, `zip=01234` stays "01234" and `userId=7` becomes "7". So it does
    if the property may also be null, as an optional one of many servers; if it may be a number,
    7 remains one.

    Args:
        words: The `key=value` words.
        values: What `parse_arguments` returned for them.
        schema: The tool's input schema.
    """
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return dict(values)
    texts = {key: text for key, _, text in (word.partition("=") for word in _utf8(words))}

    def is_text(key: str, value: Any) -> bool:
        types = _types(properties.get(key))
        return "string" in types and (isinstance(value, str) or not _types_of(value) & types)

    return {key: texts[key] if is_text(key, value) else value for key, value in values.items()}


def _types(definition: object, depth: int = 0) -> set[str]:
    """Return the types that a schema names for a value, itself or in its choices."""
    if not isinstance(definition, Mapping) or depth > _MAX_CHOICES:
        return set()
    named = definition.get("type")
    names = named if isinstance(named, list) else [named]
    found = {name for name in names if isinstance(name, str)}
    for keyword in ("anyOf", "oneOf"):
        choices = definition.get(keyword)
        for choice in choices if isinstance(choices, list) else ():
            found |= _types(choice, depth + 1)
    return found


def _types_of(value: object) -> set[str]:
    """Return the types of JSON Schema that a value is of, other than a text."""
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"integer", "number"} if value.is_integer() else {"number"}
        case list():
            return {"array"}
        case _:
            return {"object"}


def parse_texts(words: Sequence[str]) -> dict[str, str]:
    """Return the arguments of `key=value` words, all of them texts.

    Raises:
        ValueError: A word has another form. The message never repeats a value.
    """
    return _pairs(_utf8(words), "not key=value; write, for example, city=Paris")


def _utf8(words: Sequence[str]) -> list[str]:
    """Decode the words' bytes as UTF-8, whatever the locale is."""
    try:
        return [word.encode("utf-8", "surrogateescape").decode("utf-8") for word in words]
    except UnicodeError:
        raise ValueError("The arguments are not UTF-8.") from None


def _pairs(words: Sequence[str], fault: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for position, word in enumerate(words, start=1):
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ValueError(f"Argument {position} is {fault}")
        if key in pairs:
            raise ValueError(f"The argument '{key}' is given twice.")
        pairs[key] = value
    return pairs


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        value = _decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"The JSON of {where} cannot be read at line {error.lineno}, column {error.colno}: "
            f"{error.msg}."
        ) from None
    except RecursionError:
        raise ValueError(f"The JSON of {where} is nested too deeply.") from None
    except ValueError as error:
        raise ValueError(f"The JSON of {where} cannot be used: it {error}.") from None
    if not isinstance(value, dict):
        raise ValueError(f'The JSON of {where} is not an object; write {{"key": value}}.')
    return value


def _value(key: str, text: str) -> Any:
    try:
        return _decode(text)
    except _RepeatedKeyError as error:
        raise ValueError(f"The argument '{key}' cannot be used: it {error}.") from None
    except (ValueError, RecursionError):
        return text


class _RepeatedKeyError(ValueError):
    """An object has a key twice; the text follows "it"."""


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    named = dict(pairs)
    if len(named) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RepeatedKeyError(f"has the key '{key}' twice")
            seen.add(key)
    return named


_decode_keys: Final = json.JSONDecoder(object_pairs_hook=_named_once).decode


def _decode(text: str) -> Any:
    """Read what every part reads alike and nothing else: `NaN` in `key=NaN` is a text.

    Raises:
        ValueError: It is no JSON, has a key twice, or is not portable.
        RecursionError: It is nested too deeply.
    """
    _decode_keys(text)  # says where a fault is, and which key is there twice
    return portable_json.parse(text.encode())
