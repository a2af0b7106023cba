"""Errors of servers, described in one line for callers and for problems."""

from __future__ import annotations

import asyncio
import inspect
import os
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import anyio

from leaseway.server.base import ToolError

RAISED: Final = "leaseway.server: a call raised: "
"""The start of the line after a call's traceback; a worker reports that line as a problem."""

_MAX_TEXT: Final = 500
_LIBRARIES: Final = tuple(
    os.path.realpath(path) + os.sep
    for path in {
        os.path.dirname(__file__),  # noqa: PTH120
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")),
    }
)


leaving: Final = threading.Event()
"""Set once a task has exited, which ends the loop and cancels all others."""


class DefinitionError(TypeError):
    """A class or its tools cannot be served; the sentence names the place and how to fix that."""


class HandlerExitError(Exception):
    """A handler raised its cause, which is no `Exception`, such as `SystemExit`."""


@contextmanager
def contained_exits() -> Iterator[None]:
    """Raise `HandlerExitError` for exceptions that would end the server instead of the call.

    A handler may await a cancelled task or cancel its own, raise `KeyboardInterrupt`, or call
    `sys.exit()`. A `CancelledError` passes only if the request is cancelled, which the official
    package does by a cancel scope, or the process ends, and a `GeneratorExit` if the loop has
    ended, which closes what still waits.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            raise error from None
        if isinstance(error, asyncio.CancelledError) and task is not None:
            if leaving.is_set() or anyio.get_current_task().has_pending_cancellation():
                raise
            while task.cancelling():  # by the handler itself
                task.uncancel()
        raise HandlerExitError(str(error) or type(error).__name__) from error


def cause_of(error: BaseException) -> BaseException:
    """Return what happened: of a group of errors, such as that of a `TaskGroup`, the first bug.

    A group without a bug is its first `ToolError`.
    """
    if isinstance(error, HandlerExitError) and error.__cause__ is not None:
        error = error.__cause__
    if not isinstance(error, BaseExceptionGroup):
        return error
    causes = [cause_of(member) for member in error.exceptions]
    return next((cause for cause in causes if not isinstance(cause, ToolError)), causes[0])


def text_of(error: BaseException) -> str:
    """Return the message of an error, which has none if its class cannot tell it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a `__str__` of the server raises what it likes
        return ""


def location_of(function: Callable[..., Any]) -> str:
    """Return `FILE, line N, in NAME: ` of a function, or an empty string if unknown."""
    code = getattr(inspect.unwrap(getattr(function, "func", function)), "__code__", None)
    return f"{code.co_filename}, line {code.co_firstlineno}, in {code.co_name}: " if code else ""


def describe(
    error: BaseException, module: str = "", function: Callable[..., Any] | None = None
) -> str:
    """Return `FILE, line N, in FUNCTION: ValueError: message`.

    The location is the innermost frame in the server's own code, or else the function, or else the
    innermost frame.

    Args:
        error: The raised exception.
        module: The server's module, which is own code even if it is installed.
        function: The function of the server whose result caused the error, if known.
    """
    error = cause_of(error)
    text = " ".join(text_of(error).split())[:_MAX_TEXT]
    if isinstance(error, DefinitionError):
        return text
    place = location_of(function) if function else ""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [at for at, frame in enumerate(frames) if _is_own(frame, module)]
    if isinstance(error, SyntaxError) and error.filename:
        place, text = f"{error.filename}, line {error.lineno}: ", error.msg
    elif own or (frames and not place):
        frame = traceback.extract_tb(error.__traceback__)[own[-1] if own else -1]
        place = f"{frame.filename}, line {frame.lineno}, in {frame.name}: "
    return f"{place}{type(error).__name__}{': ' if text else ''}{text}"


def _is_own(frame: FrameType, module: str) -> bool:
    """Return whether a frame is of the server's package, or of no library."""
    name, path = str(frame.f_globals.get("__name__")), frame.f_code.co_filename
    is_library = path.startswith("<") or os.path.realpath(path).startswith(_LIBRARIES)
    return name.partition(".")[0] == module.partition(".")[0] or not is_library
