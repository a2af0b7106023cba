"""Converts results to instances of a type: the option `result_type`.

pydantic validates if it is installed and supports the type, otherwise msgspec; each is imported on
first use. Values are validated as JSON, so that dates, enumerations and the like are read from
strings.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from leaseway.sdk.calls.results import ToolResult
from leaseway.sdk.errors import LeasewayError
from leaseway.wire.errors import Reason


class _ResultError(LeasewayError):
    """A failed conversion of a result.

    Attributes:
        result: What the tool returned.
    """

    def __init__(self, message: str, result: ToolResult) -> None:
        super().__init__(message, started="yes")
        self.result = result


class ToolError(_ResultError):
    """The tool reported an error (`is_error`), so there is no result to convert.

    This is an exception only with `result_type`; `.result.text` is the tool's error text.
    """

    reason = Reason.SERVER_ERROR


class ResultTypeError(_ResultError, ValueError):
    """The result does not match `result_type`; the message names the first three errors."""

    reason = Reason.SERVER_ERROR


_MAX_CACHED: Final = 256
_MAX_ERRORS: Final = 3
_MAX_TEXT: Final = 500
_WRAPPER: Final = "result"
"""The member in which servers wrap structured results that are not objects."""

Decoder = Callable[[bytes], Any]
"""Decodes JSON to an instance of a type; raises `_ValidationError`."""


class _OldTypedDict(TypeError):
    """Before Python 3.12, pydantic does not support `typing.TypedDict`; msgspec does."""


class _ValidationError(Exception):
    """Why JSON is not an instance of a type: clauses without a full stop."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("; ".join(errors))
        self.errors = errors


def decoder_for(result_type: object) -> Decoder:
    """Return the decoder of a type, from the cache if the type is hashable.

    Raises:
        ImportError: Neither pydantic nor msgspec is installed.
        TypeError: The type cannot be validated.
    """
    try:
        hash(result_type)
    except TypeError:
        return _build_decoder(result_type)
    return _cached_decoder(result_type)


def typed_result(tool: str, result: ToolResult, result_type: object, decode: Decoder) -> Any:
    """Convert a result to an instance of a type.

    The structured content is converted, or the value of its only member `result`, in which servers
    wrap values that are not objects. Without structured content the text is read as JSON, except
    for the type `str`, for which any text is valid.

    Args:
        tool: The tool, for messages.
        result: The result.
        result_type: The type.
        decode: The type's `decoder_for`.

    Raises:
        ToolError: The tool reported an error.
        ResultTypeError: The result does not match the type.
    """
    if result.is_error:
        text = result.text
        shown = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
        raise ToolError(f"Tool '{tool}' failed: {shown or 'it gave no reason'}", result)
    if "structuredContent" in result.raw:
        return _from_structured(tool, result, result_type, decode)
    return _from_text(tool, result, result_type, decode)


def _from_structured(tool: str, result: ToolResult, result_type: object, decode: Decoder) -> Any:
    values = [result.structured]
    if isinstance(values[0], dict) and values[0].keys() == {_WRAPPER}:
        values.append(values[0][_WRAPPER])
    error = _ValidationError([])
    for value in values:
        try:
            return decode(json.dumps(value).encode())
        except _ValidationError as caught:
            error = caught
    raise _type_error(tool, result, result_type, error)


def _from_text(tool: str, result: ToolResult, result_type: object, decode: Decoder) -> Any:
    text = result.text
    if result_type is str:
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        kind = "no text" if not text else "text that is not JSON"
        raise ResultTypeError(
            f"Tool '{tool}' returned no structured content and {kind}, which "
            f"cannot be converted to {_name(result_type)}; call it without result_type.",
            result,
        ) from None
    try:
        return decode(text.encode())
    except _ValidationError as error:
        raise _type_error(tool, result, result_type, error) from None


def _type_error(
    tool: str, result: ToolResult, result_type: object, error: _ValidationError
) -> ResultTypeError:
    shown = error.errors[:_MAX_ERRORS]
    more = len(error.errors) - len(shown)
    if more:
        shown.append(f"and {more} more")
    return ResultTypeError(
        f"The result of tool '{tool}' does not match {_name(result_type)}: {'; '.join(shown)}.",
        result,
    )


def _name(result_type: object) -> str:
    if isinstance(result_type, type) and not hasattr(result_type, "__args__"):
        return result_type.__name__
    return str(result_type)


def _build_decoder(result_type: Any) -> Decoder:
    builders = []
    if _is_installed("pydantic") and not _is_struct(result_type):
        builders.append(_pydantic_decoder)
    if _is_installed("msgspec"):
        builders.append(_msgspec_decoder)
    if not builders:
        raise ImportError(
            "result_type needs pydantic, or msgspec, and neither is installed: "
            "pip install 'leaseway[typed]'."
        )
    for build in builders[:-1]:
        with contextlib.suppress(_OldTypedDict):
            return build(result_type)
    return builders[-1](result_type)


_cached_decoder: Final = lru_cache(_MAX_CACHED)(_build_decoder)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # a module without a spec is loaded under that name
        return False


def _is_struct(result_type: object) -> bool:
    """Return whether a type is a msgspec struct, without importing msgspec."""
    msgspec = sys.modules.get("msgspec")
    return (
        msgspec is not None
        and isinstance(result_type, type)
        and issubclass(result_type, msgspec.Struct)
    )


def _pydantic_decoder(result_type: Any) -> Decoder:
    import pydantic

    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(result_type)
        if not adapter.pydantic_complete:  # raises for unresolved names now, not in the call
            adapter.rebuild(raise_errors=True)
    except (pydantic.errors.PydanticUserError, NameError, TypeError) as error:
        old = getattr(error, "code", None) == "typed-dict-version"
        raise (_OldTypedDict if old else TypeError)(_invalid_type(result_type, error)) from None

    def decode(value: bytes) -> Any:
        try:
            return adapter.validate_json(value)
        except pydantic.ValidationError as error:
            details = error.errors(include_url=False, include_context=False, include_input=False)
            raise _ValidationError(
                [_clause(item["loc"], item["msg"]) for item in details]
            ) from None

    return decode


def _msgspec_decoder(result_type: Any) -> Decoder:
    import msgspec

    try:
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(result_type)
    except (TypeError, NameError) as error:
        raise TypeError(_invalid_type(result_type, error)) from None

    def decode(value: bytes) -> Any:
        try:
            return decoder.decode(value)
        except msgspec.DecodeError as error:
            raise _ValidationError([str(error)]) from None

    return decode


def _clause(location: tuple[int | str, ...], message: str) -> str:
    path = ".".join(str(part) for part in location)
    return f"{path}: {message}" if path else message


def _invalid_type(result_type: object, error: Exception) -> str:
    first = str(error).partition("\n")[0]
    return (
        "result_type is a dataclass, a TypedDict, a pydantic model or another type that can be "
        f"validated, not {result_type!r}: {first}"
    )
