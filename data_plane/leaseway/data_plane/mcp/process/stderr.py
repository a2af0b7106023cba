"""The last lines of a server's standard error (DESIGN §10). Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from leaseway.wire import bounds

_HIDDEN: Final = "[hidden]"
_MIN_SECRET: Final = 4
_NOISE: Final = re.compile(
    r"\s*|(See|Run|Try) '[^']*--help'.{0,40}"
    r"|Node\.js v[\d.]+\s*|\s+at .*"
    r"|npm notice.*"
    r"|npm (error|ERR!)(\s+\d{3})?\s*"
    r"|npm (error|ERR!)\s+(A complete log of this run|/\S+-debug-\d+\.log|[A-Z]:\\\S+\.log).*"
    r"|npm (error|ERR!)\s+404\s+(Note that you can also|tarball, folder).*"
)


def significant_line(text: str) -> str:
    """Return the last line that does not just point to help or to a log file.

    If there is none, the last line that is not blank.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    significant = [line for line in lines if not _NOISE.fullmatch(line)]
    return (significant or lines)[-1][:300]


class StderrTail:
    """A ring of lines, each cut to a limit, with the server's secrets hidden.

    Args:
        secrets: Values to hide, each line of a value separately. Pieces shorter than 4 characters
            are not hidden: that would garble every line.
        lines: How many lines are kept.
        line_bytes: How many bytes of a line are kept.
    """

    def __init__(
        self,
        secrets: Iterable[str] = (),
        lines: int = bounds.STDERR_LINES,
        line_bytes: int = bounds.STDERR_LINE_BYTES,
    ) -> None:
        self._lines: deque[str] = deque(maxlen=lines)
        self._line_bytes = line_bytes
        self._partial = bytearray()
        self._cut = False
        self._on_line: Callable[[str], None] | None = None
        self._secrets: tuple[str, ...] = ()
        self._room = line_bytes
        self.hide(secrets)

    def hide(self, secrets: Iterable[str]) -> None:
        """Hide more values from now on."""
        pieces = {line.strip() for value in secrets for line in value.splitlines()}
        found = {piece for piece in pieces if len(piece) >= _MIN_SECRET} | set(self._secrets)
        # The longest first: one may contain another.
        self._secrets = tuple(sorted(found, key=len, reverse=True))
        # A value that straddles the cut must be complete to be recognised.
        self._room = self._line_bytes + max((len(s.encode()) for s in found), default=0)

    def feed(self, data: bytes) -> None:
        """Receive standard error, in pieces of any size."""
        *ended, rest = data.split(b"\n")
        for piece in ended:
            self._add(piece)
            self._close_line()
        self._add(rest)

    def clear(self) -> None:
        """Forget the lines of a process that is replaced before it was used."""
        self._lines.clear()
        self._partial.clear()
        self._cut = False

    def lines(self) -> list[str]:
        """Return the kept lines, the oldest first, including an unfinished one."""
        return [*self._lines, self._shown()] if self._partial else list(self._lines)

    def watch(self, on_line: Callable[[str], None]) -> None:
        """Call `on_line` with each line from now on, as it is kept."""
        self._on_line = on_line

    def last(self, lines: int, size: int) -> str:
        """Return at most `lines` of the last non-blank lines, at most `size` characters of them."""
        return "\n".join([line for line in self.lines() if line.strip()][-lines:])[-size:]

    def _add(self, piece: bytes) -> None:
        room = self._room - len(self._partial)
        self._cut = self._cut or len(piece) > room
        self._partial += piece[:room]

    def _close_line(self) -> None:
        self._lines.append(self._shown())
        if self._on_line is not None:
            self._on_line(self._lines[-1])
        self._partial.clear()
        self._cut = False

    def _shown(self) -> str:
        text = self._partial.decode(errors="replace").rstrip("\r")
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        encoded = text.encode()
        if len(encoded) > self._line_bytes or self._cut:
            return encoded[: self._line_bytes - 3].decode(errors="ignore") + "…"
        return text
