"""The last lines of a server's standard error (design.md#bounds-and-defaults). Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from leaseway.wire import bounds

_HIDDEN: Final = "[hidden]"
_MIN_SECRET: Final = 4
_MAX_LINE: Final = 300
_NOISE: Final = re.compile(
    r"\W*|(See|Run|Try) '[^']*--?h(elp)?'.{0,40}|.{0,60}\btry '[^']*--?h(elp)?'\.?\s*"
    r"|Node\.js v[\d.]+\s*|\s+(at|from) .*|\s+(\.\.\. \d+ more|--- End of .*)"
    r"|note: run with `RUST_BACKTRACE=.*|exit status \d+\s*"
    r"|goroutine \d+ \[.*|\s+(code|errno|syscall|path|requireStack): .*"
    r"|npm (notice|(warn|WARN) deprecated).*"
    r"|npm (error|ERR!)(\s+\d{3})?\s*"
    r"|npm (error|ERR!)\s+(A complete log of this run|/\S+-debug-\d+\.log|[A-Z]:\\\S+\.log).*"
    r"|npm (error|ERR!)\s+404\s+(Note that you can also|tarball, folder).*"
    r"|npm (error|ERR!)\s+notarget\s+(In most cases you|a package version).*"
)
_HELP: Final = re.compile(
    r"\s*(usage\b.*"
    r"|(positional arguments|((global|available|common) )?(options|commands|subcommands|arguments"
    r"|flags)|examples?):?\s*)",
    re.IGNORECASE,
)
"""The head of a part of a help text, whose other lines are indented."""
_CAUSE: Final = re.compile(
    r"(error|exception)\b|\b(fatal|panic|failed|failure|cannot|can't|could not|unable to"
    r"|not found|no such|not defined|denied|refused|unrecogni[sz]ed"
    r"|unknown (option|argument|flag|command)|unexpected argument|invalid|missing|required)\b",
    re.IGNORECASE,
)
_HEAD: Final = re.compile(r"\S|\s+([|+]|(TRACE|DEBUG|INFO|NOTICE|WARN(ING)?|ERROR|CRITICAL)\b)")
"""The beginning of a message's first line, whose further ones are indented."""
_TRACEBACK: Final = re.compile(r"\W*(Exception Group )?Traceback \(most recent call last\):")
_CHATTER: Final = re.compile(r"\b(TRACE|DEBUG|INFO|NOTICE)\b")


def significant_line(text: str) -> str:
    """Return the line that says most likely why a process ended.

    That is the last line that reads like an error, or else the last one, without help texts,
    stack traces and pointers to help or a log file. If nothing is left, the last line that is not
    blank. With it are the other lines of its message.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    significant = _without_help(lines) or lines
    causes = [
        place
        for place, line in enumerate(significant)
        if _CAUSE.search(line) and not _CHATTER.search(line)
    ]
    return _message(significant, causes[-1] if causes else len(significant) - 1)


def _message(lines: list[str], place: int) -> str:
    """Return the message of a line, as one line; of a long one its head and that line."""
    first = next((at for at in range(place, -1, -1) if _HEAD.match(lines[at])), place)
    if _TRACEBACK.match(lines[first]):
        return _one_line(lines[place : place + 1])[:_MAX_LINE]
    end = next((at for at in range(place + 1, len(lines)) if _HEAD.match(lines[at])), len(lines))
    if len(_one_line(lines[first : place + 1])) > _MAX_LINE:
        return _one_line([lines[first], "…", lines[place]])[:_MAX_LINE]
    return _one_line(lines[first:end])[:_MAX_LINE]


def _one_line(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def _without_help(lines: Iterable[str]) -> list[str]:
    kept: list[str] = []
    in_help = False
    for line in lines:
        if _HELP.fullmatch(line):
            in_help = True
        elif in_help and line[0].isspace():
            continue
        elif not _NOISE.fullmatch(line):
            in_help = False
            kept.append(line)
    return kept


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
        kept = self._lines.maxlen or 0
        if self._on_line is None and data.count(b"\n") > kept:
            # Only lines that are kept cost work: a server may write empty ones as fast as it can.
            _, *ended, rest = data.rsplit(b"\n", kept + 1)
            self._partial.clear()
            self._cut = False
        else:
            *ended, rest = data.split(b"\n")
        for piece in ended:
            self._add(piece)
            self._close_line()
        self._add(rest)

    def add_line(self, line: bytes) -> None:
        """Receive a line that the server wrote elsewhere; it does not touch an unfinished one."""
        partial, cut = self._partial, self._cut
        self._partial, self._cut = bytearray(), False
        self._add(line)
        self._close_line()
        self._partial, self._cut = partial, cut

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

    @property
    def cause(self) -> str:
        """The kept line that says most likely why the process ended; empty if there is none."""
        kept = "\n".join(self.lines())
        return significant_line(kept) if kept.strip() else ""

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
