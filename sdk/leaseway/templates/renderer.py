"""`python -m leaseway.templates.renderer`: renders templates for a worker, in a process of its own.

No limit on steps bounds the time of a rendering: each step may search megabytes. A process can be
ended at any moment, and renders without slowing down the worker's event loop.

Messages are msgpack after four bytes of length: a `Rendering`, then its `Rendered`. The first one,
when the process is ready, is empty.
"""

from __future__ import annotations

import re
import struct
import sys
from contextlib import suppress
from typing import IO, Final

import msgspec

from leaseway.templates.engine import compiled
from leaseway.templates.go_nodes import TemplateSyntaxError
from leaseway.templates.limits import TemplateFailure

LENGTH: Final = struct.Struct(">I")
_KEPT: Final = 64
"""Compiled templates that are kept."""


class Rendering(msgspec.Struct):
    """A template and the JSON document that it renders."""

    template: str
    body: bytes


class Rendered(msgspec.Struct):
    """The text, or why there is none, with the template's line or 0."""

    text: str = ""
    failure: str = ""
    line: int = 0


NOT_JSON: Final = "the response is not JSON"
_ESCAPES: Final = re.compile(
    rb"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""An escaped backslash or surrogate pair, or else half of a pair."""
_REPLACEMENT: Final = rb"\ufffd"


def main() -> None:
    """Serve until standard input ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    kept: list[object] = []
    write_frame(sink, b"")
    while (content := read_frame(source)) is not None:
        rendered = _render(msgspec.msgpack.decode(content, type=Rendering), kept)
        write_frame(sink, msgspec.msgpack.encode(rendered))


def decoded(body: bytes) -> object:
    """Decode a response; halves of surrogate pairs become U+FFFD, as in Go.

    Raises:
        TemplateFailure: It is not JSON.
    """
    with suppress(ValueError, RecursionError):
        return msgspec.json.decode(body)
    with suppress(ValueError, RecursionError):
        return msgspec.json.decode(_ESCAPES.sub(_replace_half, body))
    raise TemplateFailure(NOT_JSON)


def _replace_half(escape: re.Match[bytes]) -> bytes:
    return escape[1] or _REPLACEMENT


def _render(rendering: Rendering, kept: list[object]) -> Rendered:
    try:
        data = decoded(rendering.body)
        template = compiled(rendering.template)
        if template not in kept:
            kept[_KEPT:] = []
            kept.insert(0, template)  # `compiled` itself keeps no template
        return Rendered(template.render(data))
    except TemplateFailure as failure:
        return Rendered(failure=str(failure), line=failure.line)
    except (TemplateSyntaxError, MemoryError) as error:
        return Rendered(failure=str(error) or "it needs too much memory")


def read_frame(source: IO[bytes]) -> bytes | None:
    """Return the next message, or None at the end of a stream."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    content = source.read(length)
    return content if len(content) == length else None


def write_frame(sink: IO[bytes], content: bytes) -> None:
    """Write a message."""
    sink.write(LENGTH.pack(len(content)) + content)
    sink.flush()


if __name__ == "__main__":
    main()
