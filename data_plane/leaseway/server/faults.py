"""Where an exception was raised: the one line that problems and callers are told."""

from __future__ import annotations

import os
import sysconfig
import traceback
from typing import Final

RAISED: Final = "leaseway.server: a call raised: "
"""How the line begins that follows the traceback of a call; a worker makes a problem of it."""

_MAX_TEXT: Final = 500
_LIBRARIES: Final = tuple(
    os.path.realpath(path) + os.sep
    for path in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")}
)
_OWN: Final = os.path.dirname(os.path.realpath(__file__)) + os.sep  # noqa: PTH120


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
    what = f"{name}: {text}" if text else name
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return what
    own = [frame for frame in frames if _is_own(frame.filename, home)]
    frame = (own or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}, in {frame.name}: {what}"


def _is_own(filename: str, home: str | None) -> bool:
    if filename.startswith("<"):
        return False
    path = os.path.realpath(filename)
    if home is not None and path.startswith(os.path.realpath(home) + os.sep):
        return True
    return not path.startswith((*_LIBRARIES, _OWN))
