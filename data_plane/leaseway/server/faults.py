"""Errors of servers, described in one line for callers and for problems."""

from __future__ import annotations

import asyncio
import inspect
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

RAISED: Final = "leaseway.server: a call raised: "
"""The start of the line after a call's traceback; a worker reports that line as a problem."""

_MAX_TEXT: Final = 500
_LIBRARIES: Final = tuple(
    os.path.realpath(path) + os.sep
    for path in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")}
)
_OWN: Final = os.path.dirname(os.path.realpath(__file__)) + os.sep  # noqa: PTH120


class InvalidValueError(TypeError):
    """A definition or result of a server is invalid. Its traceback does not show the server's code.

    Attributes:
        location: The location of the server's function, see `location_of`, or empty.
    """

    def __init__(self, text: str, location: str = "") -> None:
        super().__init__(text)
        self.location = location


class HandlerExitError(Exception):
    """A handler raised a `BaseException` that is no `Exception`, such as `SystemExit`.

    Attributes:
        reason: The raised exception.
    """

    def __init__(self, reason: BaseException) -> None:
        super().__init__(str(reason) or type(reason).__name__)
        self.reason = reason


@contextmanager
def contained_exits() -> Iterator[None]:
    """Raise `HandlerExitError` for exceptions that would end the server instead of the call.

    A handler may await a cancelled task, raise `KeyboardInterrupt`, or call `sys.exit()`. A
    `CancelledError` passes only if the current task is being cancelled.
    """
    try:
        yield
    except (Exception, GeneratorExit):
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise HandlerExitError(error) from error


def location_of(function: Callable[..., Any]) -> str:
    """Return `FILE, line N, in NAME` of a function, or an empty string if unknown."""
    unwrapped = inspect.unwrap(getattr(function, "func", function))
    code = getattr(unwrapped, "__code__", None)
    if code is None:
        return ""
    return f"{code.co_filename}, line {code.co_firstlineno}, in {code.co_name}"


@contextmanager
def located(function: Callable[..., Any]) -> Iterator[None]:
    """Give an `InvalidValueError` the location of the function that returned the value."""
    try:
        yield
    except InvalidValueError as error:
        error.location = location_of(function)
        raise


def describe(error: BaseException, folder: str | None = None) -> str:
    """Return `FILE, line N, in FUNCTION: ValueError: message`.

    The location is the innermost frame in the server's own code, or else the innermost frame.

    Args:
        error: The raised exception.
        folder: The folder of the server's module, which is own code even if it is installed.
    """
    name, text = type(error).__name__, " ".join(str(error).split())[:_MAX_TEXT]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {name}: {error.msg}"
    if isinstance(error, InvalidValueError):
        name = "TypeError"
    summary = f"{name}: {text}" if text else name
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return summary
    own = [frame for frame in frames if _is_own(frame.filename, folder)]
    if isinstance(error, InvalidValueError) and not own:
        return f"{error.location}: {summary}" if error.location else summary
    frame = (own or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}, in {frame.name}: {summary}"


def _is_own(filename: str, folder: str | None) -> bool:
    if filename.startswith("<"):
        return False
    path = os.path.realpath(filename)
    own = os.path.realpath(folder) + os.sep if folder is not None else ""
    # The longest folder counts: an installed server is among the libraries, and the libraries of an
    # environment are often below the server's folder.
    library = max(
        (len(place) for place in (*_LIBRARIES, _OWN) if path.startswith(place)), default=0
    )
    return not library or (path.startswith(own) and len(own) > library)
