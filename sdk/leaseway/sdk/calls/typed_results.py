"""Results as instances of a type: what `result_type` does.

pydantic validates where it is installed and knows the type, else msgspec; neither is loaded before
it is needed.
Values are validated as JSON, so that dates, enumerations and the like are read from text.

How a call with `result_type` fails although the tool returned something.

Both hold that result, and both have the reason SERVER_ERROR: what the server returned is not
what the caller asked for.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final

from leaseway.sdk.calls.results import ToolResult
from leaseway.sdk.errors import LeasewayError
from leaseway.wire.errors import Reason


class _WithResult(LeasewayError):
    """A failure that leaves a result.

    Attributes:
        result: What the tool returned.
    """

    def __init__(self, message: str, result: ToolResult) -> None:
        super().__init__(message, started="yes")
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        # A lease belongs to the client that holds it and does not travel.
        result = ToolResult(self.result.payload, self.result.is_error)
        return partial(type(self), self.message, result), ()


class ToolError(_WithResult):
    """The tool said that it failed (`is_error`), so there is nothing to convert.

    Only `result_type` makes this an exception: `.result.text` is what the tool said.
    """

    reason = Reason.SERVER_ERROR


class ResultTypeError(_WithResult, ValueError):
    """The result has not the shape of `result_type`; the text names the first three faults."""

    reason = Reason.SERVER_ERROR


_KEPT: Final = 256
_MOST_FAULTS: Final = 3
_MOST_TEXT: Final = 500
_WRAPPER: Final = "result"
"""The member in which servers put structured results that are no objects."""

Reader = Callable[[bytes], Any]
"""Makes an instance of JSON; raises `_Faults`."""


class _OldTypedDict(TypeError):
    """Before Python 3.12, pydantic takes no `typing.TypedDict`; msgspec does."""


class _Faults(Exception):
    """Why JSON is no instance of a type; one sentence, without a full stop, each."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def reader_of(result_type: object) -> Reader:
    """Return what makes instances of a type; made once for each type.

    Raises:
        ImportError: Neither pydantic nor msgspec is installed.
        TypeError: It is no type that they can validate.
    """
    try:
        hash(result_type)
    except TypeError:
        return _make_reader(result_type)
    return _kept_reader(result_type)


def typed_result(tool: str, result: ToolResult, result_type: object, read: Reader) -> Any:
    """Return a result as an instance of a type.

    The structured content is converted, or what its only member `result` holds, in which servers
    wrap what is no object; where there is none, the text is read as JSON. A `str` may be any text.

    Args:
        tool: Which tool returned it, for messages.
        result: The result.
        result_type: The type.
        read: Its `reader_of`.

    Raises:
        ToolError: The tool said that it failed.
        ResultTypeError: The result has another shape.
    """
    if result.is_error:
        text = result.text
        said = text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"
        raise ToolError(f"Tool '{tool}' failed: {said or 'it did not say why'}", result)
    if "structuredContent" in result.raw:
        return _from_structured(tool, result, result_type, read)
    return _from_text(tool, result, result_type, read)


def _from_structured(tool: str, result: ToolResult, result_type: object, read: Reader) -> Any:
    value = result.structured
    try:
        return read(json.dumps(value).encode())
    except _Faults as error:
        faults = error
    if isinstance(value, dict) and value.keys() == {_WRAPPER}:
        try:
            return read(json.dumps(value[_WRAPPER]).encode())
        except _Faults as error:
            faults = error
    raise _wrong(tool, result, result_type, faults)


def _from_text(tool: str, result: ToolResult, result_type: object, read: Reader) -> Any:
    text = result.text
    if result_type is str:
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        kind = "no text" if not text else "text that is not JSON"
        raise ResultTypeError(
            f"Tool '{tool}' returned no structured content and {kind}, so there is no "
            f"{_name(result_type)} to make of it; call it without result_type.",
            result,
        ) from None
    try:
        return read(text.encode())
    except _Faults as faults:
        raise _wrong(tool, result, result_type, faults) from None


def _wrong(tool: str, result: ToolResult, result_type: object, error: _Faults) -> ResultTypeError:
    named = error.faults[:_MOST_FAULTS]
    more = len(error.faults) - len(named)
    if more:
        named.append(f"and {more} more")
    return ResultTypeError(
        f"What tool '{tool}' returned is no {_name(result_type)}: {'; '.join(named)}.", result
    )


def _name(result_type: object) -> str:
    if isinstance(result_type, type) and not hasattr(result_type, "__args__"):
        return result_type.__name__
    return str(result_type)


def _make_reader(result_type: Any) -> Reader:
    makers = []
    if _is_installed("pydantic") and not _is_struct(result_type):
        makers.append(_pydantic_reader)
    if _is_installed("msgspec"):
        makers.append(_msgspec_reader)
    if not makers:
        raise ImportError(
            "result_type needs pydantic, or msgspec, and neither is installed: "
            "pip install 'leaseway[typed]'."
        )
    for make in makers[:-1]:
        with contextlib.suppress(_OldTypedDict):
            return make(result_type)
    return makers[-1](result_type)


_kept_reader: Final = lru_cache(_KEPT)(_make_reader)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # what is loaded under that name is no package
        return False


def _is_struct(result_type: object) -> bool:
    """Return whether a type is msgspec's own, which only an import of it can have made."""
    msgspec = sys.modules.get("msgspec")
    return (
        msgspec is not None
        and isinstance(result_type, type)
        and issubclass(result_type, msgspec.Struct)
    )


def _pydantic_reader(result_type: Any) -> Reader:
    import pydantic

    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(result_type)
        if not adapter.pydantic_complete:  # a name in it leads nowhere; else the call would tell
            adapter.rebuild(raise_errors=True)
    except (pydantic.errors.PydanticUserError, NameError, TypeError) as error:
        old = getattr(error, "code", None) == "typed-dict-version"
        raise (_OldTypedDict if old else TypeError)(_no_type(result_type, error)) from None

    def read(value: bytes) -> Any:
        try:
            return adapter.validate_json(value)
        except pydantic.ValidationError as error:
            details = error.errors(include_url=False, include_context=False, include_input=False)
            raise _Faults([_fault(one["loc"], one["msg"]) for one in details]) from None

    return read


def _msgspec_reader(result_type: Any) -> Reader:
    import msgspec

    try:
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(result_type)
    except (TypeError, NameError) as error:
        raise TypeError(_no_type(result_type, error)) from None

    def read(value: bytes) -> Any:
        try:
            return decoder.decode(value)
        except msgspec.DecodeError as error:
            raise _Faults([str(error)]) from None

    return read


def _fault(where: tuple[int | str, ...], what: str) -> str:
    path = ".".join(str(part) for part in where)
    return f"{path}: {what}" if path else what


def _no_type(result_type: object, error: Exception) -> str:
    first = str(error).partition("\n")[0]
    return (
        "result_type is a dataclass, a TypedDict, a pydantic model or another type that can be "
        f"validated, not {result_type!r}: {first}"
    )
