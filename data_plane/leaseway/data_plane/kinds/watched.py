"""What a worker watches of servers of some kinds, beside the values of their entries.

A kind of a package may have the same two functions in its module for workers, `code_files` and
`problem_in`. What they raise is logged, and nothing is watched then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from leaseway.data_plane.core.problems import sentence
from leaseway.data_plane.kinds.packages import UnusableKind, half_of
from leaseway.data_plane.kinds.python import module_files
from leaseway.server.faults import RAISED
from leaseway.spec.kinds.python import PythonPart
from leaseway.spec.model import Part, ServerSpec

ProblemIn = Callable[[str], tuple[str, str] | None]
"""Returns the reason and the message of the problem that a line of stderr tells of, or None."""


def _call_raised(line: str, server_id: str) -> tuple[str, str] | None:
    """Find a line by which a Python class says that a call raised."""
    place = line.removeprefix(RAISED)
    if place == line:
        return None
    message = (
        f"A call raised: {sentence(place)} Its caller got the error. See"
        f" `leaseway logs {server_id}` for the traceback; this warning stays until the server's"
        " entry or code changes."
    )
    return "CALL_RAISED", message


_CODE_FILES: Final[Mapping[type[Part], Callable[..., Any]]] = {PythonPart: module_files}
_PROBLEM_IN: Final[Mapping[type[Part], Callable[..., Any]]] = {PythonPart: _call_raised}
_logger = logging.getLogger(__name__)


def code_files(part: Part, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the files that a server with `has_code` may consist of, whether they exist or not.

    Args:
        part: What its entry says.
        environment: The worker's environment.
    """
    found = _CODE_FILES.get(type(part)) or _of_package(type(part), "code_files")
    if not part.has_code or found is None:
        return ()
    try:
        return tuple(Path(path) for path in found(part, environment))
    except Exception as error:  # noqa: BLE001 - a foreign module raises what it likes
        _log(type(part), "code_files", error)
        return ()


def problem_finder(spec: ServerSpec) -> ProblemIn | None:
    """Return what finds problems in a server's stderr, or None for kinds that say none there."""
    kind = type(spec.part)
    if kind in _PROBLEM_IN:
        return partial(_PROBLEM_IN[kind], server_id=spec.key.server_id)
    found = _of_package(kind, "problem_in")
    return None if found is None else partial(_guarded, found, kind, spec.key.server_id)


def _guarded(
    found: Callable[..., Any], kind: type[Part], server_id: str, line: str
) -> tuple[str, str] | None:
    try:
        told = found(line, server_id)
        return None if told is None else (str(told[0]), str(told[1]))
    except Exception as error:  # noqa: BLE001 - a foreign module raises what it likes
        _log(kind, "problem_in", error)
        return None


def _of_package(kind: type[Part], name: str) -> Callable[..., Any] | None:
    if not kind.worker:
        return None
    try:
        return getattr(half_of(kind), name, None)
    except UnusableKind:
        return None  # the start of the server says why


def _log(kind: type[Part], name: str, error: Exception) -> None:
    _logger.warning("%s of %s raised %s.", name, kind.worker, type(error).__name__)
