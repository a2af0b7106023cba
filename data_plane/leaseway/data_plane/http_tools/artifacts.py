"""Artifacts in the arguments of a call: their references give way to the bytes that they name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from leaseway.data_plane.core.calls.call import ReadArtifact
from leaseway.wire.bounds import MIB
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.artifact_refs import is_reference

MAX_BYTES: Final = 32 * MIB
"""Bytes of all the artifacts that one request sends."""

Place = tuple[dict[str, Any] | list[Any], Any]
"""What holds a reference, and the name or number that it has there."""


async def read_artifacts(
    arguments: dict[str, Any], names: Iterable[str], read: ReadArtifact
) -> None:
    """Put the bytes of artifacts where arguments name them.

    Args:
        arguments: Of the call; changed.
        names: The parameters that hold bytes, one of them or a list.
        read: Returns an artifact's bytes.

    Raises:
        Fault: ARTIFACT_LOST, OVERLOADED, or INVALID_ARGUMENTS where they are too many.
    """
    left = MAX_BYTES
    for holder, place in list(_references(arguments, names)):
        try:
            holder[place] = content = await read(holder[place], left)
        except Fault as fault:
            if fault.reason is not Reason.ARTIFACT_LOST:
                raise
            said = fault.message.rstrip(".")
            text = f"{said}. It may be kept by another worker: give its bytes as base64 instead."
            raise replace(fault, message=text, started="no") from None
        left -= len(content)


def _references(arguments: dict[str, Any], names: Iterable[str]) -> Iterator[Place]:
    for name in names:
        value = arguments.get(name)
        if isinstance(value, str) and is_reference(value):
            yield arguments, name
        elif isinstance(value, list):
            for number, item in enumerate(value):
                if isinstance(item, str) and is_reference(item):
                    yield value, number
