"""Checks of the parameters of public methods. Pure."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Coroutine, Iterable, Mapping
from numbers import Real
from typing import Final

from leaseway.sdk.errors import InvalidRequest
from leaseway.wire.bounds import MAX_NESTING, MAX_OAUTH_TOKEN
from leaseway.wire.messages.mcp import LOG_LEVELS
from leaseway.wire.names import (
    ALL_TENANTS,
    KEY_RULE,
    TENANT_RULE,
    is_text,
    is_valid_key,
    is_valid_tenant,
)

_MAX_PATH: Final = 120
"""Characters of the path of a value in a message."""
_MAX_BITS: Final = 14_284
"""Bits of an integer that Python writes in any case: 4,300 digits."""
_NO_ASYNC: Final = (
    "of the synchronous client runs in the calling thread and cannot be async; pass a plain "
    "function, or use AsyncClient."
)


def check_call(name: object, arguments: object, timeout: object) -> None:
    """Raise a TypeError, ValueError or InvalidRequest for invalid parameters of a call."""
    if type(name) is not str or not name.isascii():
        check_text("name", name)
    if arguments is not None and not isinstance(arguments, Mapping):
        raise TypeError(
            f"arguments is a mapping of the tool's arguments by name, such as {{'key': 1}}, or "
            f"None, not {_kind(arguments)}{_way_to_mapping(arguments)}."
        )
    if timeout is not None:
        check_seconds("timeout", timeout)


def _way_to_mapping(value: object) -> str:
    """Return how to make a mapping of what was given as arguments, or empty."""
    if isinstance(value, str | bytes):
        return "; read text with json.loads"
    if hasattr(value, "model_dump"):
        return "; pass its model_dump(mode='json')"
    if dataclasses.is_dataclass(value):
        return "; pass dataclasses.asdict of it"
    return ""


def check_text(parameter: str, value: object) -> None:
    """Raise a TypeError if a parameter is not a str, InvalidRequest if UTF-8 cannot encode it.

    The latter is not a TypeError: text from a model may contain lone surrogates.
    """
    if not isinstance(value, str):
        raise TypeError(f"{parameter} is a str, not {_kind(value)}.")
    if not is_text(value):
        raise InvalidRequest(
            f"{parameter} holds a lone surrogate, half of a character, which UTF-8 cannot hold: "
            f"{value[:80]!a}."
        )


def checked_token(token: object) -> str:
    """Return a subject token, or empty for None; raise without repeating what is none.

    Raises:
        TypeError: It is not a str.
        InvalidRequest: It can be no token.
    """
    if token is None:
        return ""
    if not isinstance(token, str):
        raise TypeError(f"subject_token is a str, not {_kind(token)}.")
    if len(token) > MAX_OAUTH_TOKEN or not all("!" <= character <= "~" for character in token):
        raise InvalidRequest(
            f"subject_token is no token: it has at most {MAX_OAUTH_TOKEN} characters, all of them "
            "printable ASCII without spaces."
        )
    return token


def check_key(parameter: str, value: object) -> None:
    """Raise as `check_text`, and InvalidRequest for an invalid session key, tenant or agent."""
    check_text(parameter, value)
    if isinstance(value, str) and not is_valid_key(value):
        raise InvalidRequest(f"{parameter} has {KEY_RULE}; {value[:40]!a}… breaks that.")


def check_tenant(value: object) -> None:
    """Raise as `check_text`, and InvalidRequest for an invalid tenant; `*` is for operators."""
    check_key("tenant", value)
    if isinstance(value, str) and value not in ("", ALL_TENANTS) and not is_valid_tenant(value):
        raise InvalidRequest(f"tenant has {TENANT_RULE}; {value[:40]!a} breaks that.")


def check_seconds(parameter: str, value: object) -> None:
    """Raise a TypeError if a parameter is not a number, a ValueError if it is NaN."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{parameter} is a number of seconds, not {_kind(value)}.")
    if value != value:  # only NaN differs from itself
        raise ValueError(f"{parameter} is a number of seconds, not NaN.")


def check_count(parameter: str, value: object) -> None:
    """Raise a TypeError if a parameter is not an int."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{parameter} is a whole number, not {_kind(value)}.")


def check_ids(parameter: str, value: object) -> tuple[str, ...]:
    """Return ids as a tuple, empty for None; raise a TypeError or InvalidRequest if invalid."""
    if value is None:
        return ()
    ids = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (None,)
    if not all(isinstance(entry, str) for entry in ids):
        raise TypeError(f"{parameter} is a list of ids, such as ['time'], or None, not {value!r}.")
    for entry in ids:
        check_text(parameter, entry)
    return ids


def check_level(level: object) -> None:
    """Raise a ValueError if a log level is not one of MCP's."""
    if level not in LOG_LEVELS:
        raise ValueError(f"log_level is one of {', '.join(LOG_LEVELS)}, not {level!r}.")


def check_callback(parameter: str, value: object, *, may_be_async: bool) -> None:
    """Raise a TypeError if a callback is not callable, or is async but must not be."""
    if value is None:
        return
    if not callable(value):
        raise TypeError(f"{parameter} is a function or None, not {_kind(value)}.")
    asynchronous = inspect.iscoroutinefunction
    if not may_be_async and (asynchronous(value) or asynchronous(type(value).__call__)):
        raise TypeError(f"{parameter} {_NO_ASYNC}")


def checked_return(parameter: str, value: object) -> object:
    """Return what a callback of the synchronous client returned; raise a TypeError if async.

    A lambda that calls an async function is not one itself: only what it returns tells.
    """
    if inspect.isawaitable(value):
        if isinstance(value, Coroutine):
            value.close()  # it never runs, without a warning
        raise TypeError(f"{parameter} {_NO_ASYNC}")
    return value


def problem_of_json(value: object, path: str = "", depth: int = 0) -> str:
    """Return where a value holds what JSON does not have, and of which type; never its text.

    Args:
        value: What `json` could not write.
        path: Where it stands, such as `filters.since`; empty means on top.
        depth: How many lists and dicts it is in.

    Returns:
        What is wrong with the first such value that `json` would come to, or empty.
    """
    where = f"`{path}`" if path else "the whole"
    if isinstance(value, dict | list | tuple):
        if depth == MAX_NESTING:
            return f"{where} is nested too deeply, or contains itself"
        is_dict = isinstance(value, dict)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            if what := _problem_of_key(key):
                return f"{where} has a key {what}"
            step = f"{'.' if path else ''}{key}" if is_dict else f"[{key}]"
            if problem := problem_of_json(inner, f"{path}{step}"[:_MAX_PATH], depth + 1):
                return problem
        return ""
    if isinstance(value, str):
        return "" if is_text(value) else f"{where} has a lone surrogate, half of a character"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{where} is NaN or infinite"
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"{where} is a number of thousands of digits"
    if value is None or isinstance(value, int | float):
        return ""
    kind = type(value)  # numpy and others have types with the names of Python's
    home = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"{where} is of type {home}{kind.__name__}"


def _problem_of_key(key: object) -> str:
    if key is not None and not isinstance(key, str | int | float):
        return f"of type {_kind(key)}"
    if isinstance(key, float) and not math.isfinite(key):
        return "that is NaN or infinite"
    if isinstance(key, int) and key.bit_length() > _MAX_BITS:
        return "of thousands of digits"
    if isinstance(key, str) and not is_text(key):
        return "with a lone surrogate, half of a character"
    return ""


def _kind(value: object) -> str:
    return type(value).__name__
