"""Reads a server's bytes where they come in: lines, and what is JSON, are decided here, once. Pure.

Nearly every message is read as it is, after one scan in C. Servers also send what their language
takes for JSON: Latin-1, texts cut in the middle of an emoji, `NaN`, line breaks in strings, a byte
order mark; and what a terminal does not show, such as colours, or a message right behind another
one. That is repaired, so that it costs neither the answer nor its neighbours, and everything behind
this module reads the same text. Of a line that is too long, the request's id is found.
"""

from __future__ import annotations

import contextlib
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from leaseway.data_plane.mcp.protocol.messages.codec import (
    CutMessage,
    JsonRpcMessage,
    request_key,
)
from leaseway.data_plane.mcp.protocol.messages.results import (
    SeenResponse,
    has_many_objects,
    look_at,
)
from leaseway.wire import bounds

_ItemT = TypeVar("_ItemT")

_EXCERPT: Final = 1024
"""Bytes that are kept of the start and of the end of a skipped line."""

_VERSION: Final = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID: Final = rb'"id"\s*:\s*(\d{1,18}|"[^"\\]{1,64}")'
_id_first: Final = re.compile(
    rb"\s*\{\s*(?:%b\s*,\s*)?%b\s*,\s*(?:%b\s*,\s*)?\"(?:result|error)\""
    % (_VERSION, _ID, _VERSION)
).match
_result_first: Final = re.compile(rb"\s*\{\s*(?:%b\s*,\s*)?\"(?:result|error)\"" % _VERSION).match
# Only one brace follows, so the id is the message's own, not part of its result.
_id_last: Final = re.compile(rb"%b\s*(?:,\s*%b\s*)?\}\s*$" % (_ID, _VERSION)).search


# What may stand before and after a result, in every byte: it alone is decoded.
_WS: Final = rb"[ \t\r\n]*"
_MARKED: Final = rb'"jsonrpc"%b:%b"2\.0"' % (_WS, _WS)
_NUMBERED: Final = rb'"id"%b:%b(0|[1-9]\d{0,17})' % (_WS, _WS)
_NEXT: Final = rb"%b,%b" % (_WS, _WS)
_RESULT: Final = rb'"result"%b:%b(?=\{)' % (_WS, _WS)
_before_result: Final = re.compile(
    rb"%b\{%b(?:%b%b)?(?:%b%b(?:%b%b)?)?%b"
    % (_WS, _WS, _MARKED, _NEXT, _NUMBERED, _NEXT, _MARKED, _NEXT, _RESULT)
).match
_after_result: Final = re.compile(
    rb"(?:%b%b)?(?:%b%b(?:%b%b)?)?%b\}%b\Z"
    % (_NEXT, _MARKED, _NEXT, _NUMBERED, _NEXT, _MARKED, _WS, _WS)
).match
_MAX_BATCH: Final = bounds.MIB
"""Bytes of a batch, which is small, since no batches are sent to servers."""

_GLANCED_FROM: Final = 8 << 10
"""Bytes of a message from which a look at its result before its decoding saves time."""


class LineTooLong(Exception):
    """A line exceeds the limit for skipping, too."""


class LineSplitter:
    """Splits a byte stream into lines, in linear time.

    Args:
        limit: Maximum bytes of a line. A longer one is skipped.
        on_skipped: Called after a skipped line, with its start, its end and its length.
        skip_limit: Maximum bytes of a skipped line.
    """

    def __init__(
        self, limit: int, on_skipped: Callable[[bytes, bytes, int], None], skip_limit: int
    ) -> None:
        self._limit = limit
        self._on_skipped = on_skipped
        self._skip_limit = skip_limit
        self._parts: list[bytes] = []
        self._size = 0
        self._head = self._tail = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that end in `data`, without their newline.

        Raises:
            LineTooLong: A line exceeds the skip limit; the stream is unusable.
        """
        if self._skipping:
            data = self._skip(data)
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._parts:
            self._parts.append(lines[0])
            lines[0] = b"".join(self._parts)
            self._parts.clear()
            self._size = 0
        # Only the first line may have started in earlier data; the others are at most one read.
        if lines and len(lines[0]) > self._limit:
            long = lines.pop(0)
            self._on_skipped(long[:_EXCERPT], long[-_EXCERPT:], len(long))
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > self._limit:
                self._start_skipping()
        return lines

    def _start_skipping(self) -> None:
        # Do not join the parts: that may be tens of megabytes.
        parts = self._parts
        self._head = b"".join(_excerpt_parts(parts))[:_EXCERPT]
        self._tail = b"".join(reversed(_excerpt_parts(reversed(parts))))[-_EXCERPT:]
        parts.clear()
        self._skipping = True
        self._check()

    def _skip(self, data: bytes) -> bytes:
        """Return the data after the line that is being skipped."""
        line, newline, after = data.partition(b"\n")
        self._size += len(line)
        self._tail = (self._tail + line[-_EXCERPT:])[-_EXCERPT:]
        self._check()
        if newline:
            head, tail, size = self._head, self._tail, self._size
            self._skipping, self._size, self._head, self._tail = False, 0, b"", b""
            self._on_skipped(head, tail, size)
        return after

    def _check(self) -> None:
        if self._size > self._skip_limit:
            raise LineTooLong


def _excerpt_parts(parts: Iterable[bytes]) -> list[bytes]:
    """Return the first parts that together reach the length of an excerpt."""
    taken: list[bytes] = []
    size = 0
    for part in parts:
        taken.append(part)
        size += len(part)
        if size >= _EXCERPT:
            break
    return taken


def response_key(head: bytes, tail: bytes) -> int | str | None:
    """Return the key of the request that an unreadable line answers, or None if unknown.

    `head` and `tail` are the line's start and end, at least 200 bytes of each if it is longer.
    """
    found = _id_first(head)
    if found is None and _result_first(head) is not None:
        found = _id_last(tail)
    return request_key(found.group(1).decode().strip('"')) if found is not None else None


SMALL: Final = 32 << 10
"""Bytes of a message that may be repaired on the event loop; larger ones need a thread."""

MAX_SKIPPED: Final = 8 * bounds.MAX_LINE
"""Bytes of a line that is skipped because it is too long."""

MAX_DEPTH: Final = 200
"""Levels that are kept of a message that is nested too deeply to be read."""

_MAX_DIGITS: Final = 4300
"""Digits of an integer that Python's parsers read."""

_STEP: Final = _MAX_DIGITS // 2
_ESCAPE: Final = len(rb"\ud83d")

# A half that is certainly or perhaps alone. In a run of backslashes each second one is escaped.
_HALF: Final = (
    rb"(?<!\\)(?:\\\\)*+\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<![^\\]\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
_find_half: Final = re.compile(_HALF).search
_surrogates: Final = re.compile(rb"(?<!\\)(\\++)u([dD][89a-fA-F][0-9a-fA-F]{2})").finditer

# Possessive, and a string may end with the text: linear for every input.
_strings: Final = re.compile(rb'("(?:[^"\\]++|\\.)*+(?:"|\\?\Z))', re.DOTALL)
_controls: Final = re.compile(rb"[\x00-\x1f]")
_find_control: Final = _controls.search
_constants: Final = re.compile(rb"-?\b(?:NaN|Infinity)\b")
_brackets: Final = re.compile(rb"[\[\]{}]").finditer
_decode: Final = msgspec.json.Decoder(JsonRpcMessage).decode
_decode_cut: Final = msgspec.json.Decoder(CutMessage).decode
_decode_batch: Final = msgspec.json.Decoder(list[JsonRpcMessage]).decode
_split: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_cut_batch: Final = msgspec.json.Decoder(list[CutMessage]).decode
_starts_batch: Final = re.compile(rb"\[%b\{%b[\"}]" % (_WS, _WS)).match
# What a terminal does not show: control characters, colours, titles, a byte order mark.
_UNSHOWN: Final = (
    rb"(?:\x1b\[[0-?]{0,64}+[ -/]{0,8}+[@-~]|\x1b\][^\x07\x1b\n]{0,512}+(?:\x07|\x1b\\)"
    rb"|\x1b[ -/]{0,8}+[0-Z^-~]|\xef\xbb\xbf|[\x00-\x1a\x1c-\x20\x7f])*+"
)
_drop_unshown: Final = re.compile(rb"\A" + _UNSHOWN).sub
_match_more: Final = re.compile(_UNSHOWN + rb"(?=\{)").match
_find_endless: Final = re.compile(rb"(?<![\d.+eE])\d{%d}" % (_MAX_DIGITS + 1)).search


class Repaired(NamedTuple):
    """A repaired message.

    Attributes:
        data: The message; it may still not be JSON.
        was_cut: Whether values that were nested too deeply became null.
    """

    data: bytes
    was_cut: bool


def read(data: bytes) -> JsonRpcMessage:
    """Decode a message; bytes that are not UTF-8 become U+FFFD.

    Raises:
        ValueError: It is not JSON-RPC. `read_repaired` may help.
        RecursionError: It is nested too deeply; likewise.
    """
    data = data if data.isascii() else _as_text(data)
    if len(data) >= _GLANCED_FROM and not has_many_objects(data):
        return _glance(data) or _decode(data)
    return _decode(data)


def _glance(data: bytes) -> SeenResponse | None:
    """Decode a large response in one pass over its result; None if it must be decoded as others.

    Otherwise each byte is passed three times: to find the end of the result, to find its flags, and
    to see whether it has media. What stands around the result is known byte by byte, so that the
    message is JSON if the result is an object.
    """
    end = data.rfind(b"}", 0, data.rfind(b"}")) + 1  # no brace follows but the message's own
    before, after = _before_result(data), _after_result(data, end)
    if before is None or after is None:
        return None
    numbers = [number for number in (before[1], after[1]) if number is not None]
    if len(numbers) != 1:
        return None
    result = memoryview(data)[before.end() : end]
    try:
        look = look_at(result)
    except (ValueError, RecursionError):
        return None
    return SeenResponse(id=int(numbers[0]), result=msgspec.Raw(result), look=look)


def read_body(data: bytes) -> Sequence[JsonRpcMessage]:
    """Decode a message or a batch; see `read`."""
    if _is_batch(data):
        return _bounded(_decode_batch, data if data.isascii() else _as_text(data))
    return (read(data),)


def read_repaired(data: bytes) -> Sequence[JsonRpcMessage]:
    """Decode a message or a batch after `repair`, or messages that stand side by side.

    Raises:
        ValueError: It is not JSON-RPC.
    """
    data, was_cut = repair(data)
    if _is_batch(data):
        return _bounded(_decode_cut_batch if was_cut else _decode_batch, data)
    decode: Callable[[bytes], JsonRpcMessage] = _decode_cut if was_cut else _decode
    try:
        return (decode(data),)
    except ValueError:
        first, *others = _split_joined(data)
        if len(first) == len(data):
            raise
    return [decode(first), *_readable(decode, others)]


def _readable(
    decode: Callable[[bytes], JsonRpcMessage], messages: Iterable[bytes]
) -> Iterable[JsonRpcMessage]:
    for message in messages:
        with contextlib.suppress(ValueError, RecursionError):
            yield decode(message)


def _split_joined(data: bytes) -> list[bytes]:
    """Split objects that stand side by side; what follows them is none, and left out.

    Programs that write from several threads join lines so, and others write behind a message.
    """
    found: list[bytes] = []
    start = at = depth = 0
    for index, part in enumerate(_strings.split(data)):  # the strings have odd indices
        for bracket in () if index % 2 else _brackets(part):
            if at + bracket.start() < start:
                continue  # of a colour between two messages
            depth += 1 if bracket[0] in b"[{" else -1
            if depth:
                continue
            found.append(data[start : at + bracket.end()])
            more = _match_more(data, at + bracket.end())
            if more is None or len(found) == bounds.MAX_JSON_RPC_BATCH:
                return found
            start = more.end()
        at += len(part)
    return [*found, data[start:]]


def shown(line: bytes) -> bytes:
    """Return what a terminal shows of a line: no colours at its start, and what its last CR leaves.

    A program that shows how far it is writes over its line, which may end with a message.
    """
    line = _drop_unshown(b"", line.rstrip(), 1)
    if line.startswith(b"{"):
        return line
    return _drop_unshown(b"", line[line.rfind(b"\r") + 1 :], 1)


def after_prompt(line: bytes) -> bytes:
    """Return the message that ends a line which begins as a text; the line itself without one.

    Only for the start of a server, when it has seen no text of anybody that could look like one.
    """
    at = line.find(b'{"jsonrpc"')
    return line if at < 0 or _starts_batch(line) is not None else line[at:]


def split_batch(line: bytes) -> Sequence[bytes]:
    """Return the messages of a batch that came as one line; none if it is no batch.

    Servers of MCP 2025-03-26 may answer so. Others write lines such as `[INFO] ready`.

    Raises:
        ValueError: It is too large, or not JSON. `read_repaired` may help.
        RecursionError: It is nested too deeply; likewise.
    """
    if _starts_batch(line) is None:
        return ()
    return [bytes(item) for item in _bounded(_split, line)]


def _bounded(decode: Callable[[bytes], Sequence[_ItemT]], batch: bytes) -> Sequence[_ItemT]:
    # Decoding ends only with the last item: the size bounds how many there are until then.
    if len(batch) > _MAX_BATCH or len(items := decode(batch)) > bounds.MAX_JSON_RPC_BATCH:
        raise ValueError("The batch is too large.")
    return items


def _is_batch(data: bytes) -> bool:
    return data.startswith(b"[") or data[:64].lstrip().startswith(b"[")


def _as_text(data: bytes) -> bytes:
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="replace").encode()
    return data


def repair(data: bytes) -> Repaired:
    """Return a message with what other languages write in JSON as JSON has it.

    Halves of surrogate pairs become U+FFFD, `NaN` and infinities null, and control characters in
    strings are escaped. What is nested more than `MAX_DEPTH` levels deep becomes null. This takes
    longer than decoding, but linear time.
    """
    data = _as_text(data.removeprefix(BOM_UTF8))
    if _find_half(data) is not None:
        data = _without_halves(data)
    has_constants = b"NaN" in data or b"Infinity" in data
    has_controls = _find_control(data) is not None
    may_be_deep = data.count(b"[") + data.count(b"{") > MAX_DEPTH
    if not (has_constants or has_controls or may_be_deep):
        return Repaired(data, False)
    parts = _strings.split(data)  # the strings have odd indices
    if has_constants:
        parts[::2] = [_constants.sub(b"null", part) for part in parts[::2]]
    if has_controls:
        parts[1::2] = [_controls.sub(_escape, part) for part in parts[1::2]]
    if not (may_be_deep and _depth(parts) > MAX_DEPTH):
        return Repaired(b"".join(parts), False)
    return Repaired(_cut(parts), True)


def _without_halves(data: bytes) -> bytes:
    parts: list[bytes] = []
    end = 0
    first: re.Match[bytes] | None = None  # the first half of a pair, whose second must follow
    for match in _surrogates(data):
        if len(match[1]) % 2 == 0:
            continue  # an escaped backslash, and text
        is_second = match[2][1:2] in b"cdefCDEF"
        if first is not None:
            if is_second and match.end() - first.end() == _ESCAPE:
                first = None
                continue
            end = _replace(data, first, parts, end)
            first = None
        if is_second:
            end = _replace(data, match, parts, end)
        else:
            first = match
    if first is not None:
        end = _replace(data, first, parts, end)
    return b"".join((*parts, data[end:]))


def _replace(data: bytes, half: re.Match[bytes], parts: list[bytes], end: int) -> int:
    parts += (data[end : half.end() - _ESCAPE], rb"\ufffd")
    return half.end()


def _depth(parts: list[bytes]) -> int:
    depth = deepest = 0
    for part in parts[::2]:
        for bracket in _brackets(part):
            if bracket[0] in b"[{":
                depth += 1
                deepest = max(deepest, depth)
            else:
                depth -= 1
    return deepest


def _escape(control: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % control[0][0]


def _cut(parts: list[bytes]) -> bytes:
    """Join the parts of a message, with null for what is nested too deeply."""
    kept: list[bytes] = []
    depth = 0
    for index, part in enumerate(parts):
        if index % 2:
            if depth <= MAX_DEPTH:
                kept.append(part)
            continue
        start = 0
        for bracket in _brackets(part):
            if bracket[0] in b"[{":
                depth += 1
                if depth == MAX_DEPTH + 1:
                    kept += (part[start : bracket.start()], b"null")
            else:
                depth -= 1
                if depth == MAX_DEPTH:
                    start = bracket.end()
        if depth <= MAX_DEPTH:
            kept.append(part[start:])
    return b"".join(kept)


def has_endless_integer(data: bytes) -> bool:
    """Return whether JSON has an integer of more than 4,300 digits, which few parsers read.

    Looks at one byte in 2,150: a longer number contains one of them, with as many digits before or
    after it.
    """
    for at in range(_STEP, len(data), _STEP):
        if data[at : at + 1].isdigit() and (
            data[at - _STEP : at].isdigit() or data[at : at + _STEP].isdigit()
        ):
            return any(map(_find_endless, _strings.split(data)[::2]))
    return False
