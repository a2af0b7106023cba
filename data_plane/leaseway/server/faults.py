"""Where an exception was raised: the one line that problems and callers are told."""

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
"""How the line begins that follows the traceback of a call; a worker makes a problem of it."""

_MAX_TEXT: Final = 500
_LIBRARIES: Final = tuple(
    os.path.realpath(path) + os.sep
    for path in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")}
)
_OWN: Final = os.path.dirname(os.path.realpath(__file__)) + os.sep  # noqa: PTH120


class MisfitError(TypeError):
    """What a server defines or returns can't be used. Nothing raised it where it stands.

    Attributes:
        place: Where it stands, as `place_of` returns it; empty where that is not known.
    """

    def __init__(self, text: str, place: str = "") -> None:
        super().__init__(text)
        self.place = place


class EndedCallError(Exception):
    """A handler raised what is no `Exception`, such as `SystemExit`.

    Attributes:
        reason: What it raised.
    """

    def __init__(self, reason: BaseException) -> None:
        super().__init__(str(reason) or type(reason).__name__)
        self.reason = reason


@contextmanager
def held_to_its_call() -> Iterator[None]:
    """Make what would end the server, or the call without an answer, an error of the call.

    A handler may await what was cancelled, raise `KeyboardInterrupt`, or call `sys.exit()`. A
    `CancelledError` is its own unless somebody cancels the task that it runs in.

    Raises:
        EndedCallError: The handler raised such an exception.
    """
    try:
        yield
    except (Exception, GeneratorExit):
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise EndedCallError(error) from error


def place_of(function: Callable[..., Any] | None) -> str:
    """Return `FILE, line N, in NAME` of a function; "" where that is not known."""
    unwrapped = inspect.unwrap(function) if function is not None else None
    code = getattr(unwrapped, "__code__", None)
    if code is None:
        return ""
    return f"{code.co_filename}, line {code.co_firstlineno}, in {code.co_name}"


def describe(error: BaseException, home: str | None = None) -> str:
    """Return `FILE, line N, in FUNCTION: ValueError: why`.

    The place is the innermost one in the server's own code; where there is none, the innermost
    of all.

    Args:
        error: What was raised.
        home: The folder of the server's module. It counts as own code even if it is installed.
    """
    name, text = type(error).__name__, " ".join(str(error).split())[:_MAX_TEXT]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {name}: {error.msg}"
    if isinstance(error, MisfitError):
        name = "TypeError"
    what = f"{name}: {text}" if text else name
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return what
    own = [frame for frame in frames if _is_own(frame.filename, home)]
    if isinstance(error, MisfitError) and not own:
        return f"{error.place}: {what}" if error.place else what
    frame = (own or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}, in {frame.name}: {what}"


def _is_own(filename: str, home: str | None) -> bool:
    if filename.startswith("<"):
        return False
    path = os.path.realpath(filename)
    if home is not None and path.startswith(os.path.realpath(home) + os.sep):
        return True
    return not path.startswith((*_LIBRARIES, _OWN))
