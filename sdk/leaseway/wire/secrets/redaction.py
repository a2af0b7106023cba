"""Redaction of secret values in every text that leaves the process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from weakref import WeakValueDictionary

from leaseway.wire.secrets.decoding import readings

REDACTED: Final = "[redacted]"
_MIN_SECRET: Final = 4  # redacting shorter values would only damage ordinary text
_MIN_WORD: Final = 8  # the same for values that are one word or one number

_hidden: Final[WeakValueDictionary[frozenset[str], Hidden]] = WeakValueDictionary()
_sources: Final[dict[str, Hidden]] = {}
_current: Mapping[str, tuple[str, ...]] | None = {}  # None if it must be built again
_lock = threading.Lock()


class Hidden:
    """Values that are redacted for as long as this object exists."""

    __slots__ = ("__weakref__", "values")

    def __init__(self, values: frozenset[str]) -> None:
        self.values = values


def hide(values: Iterable[str], source: str = "") -> Hidden:
    """Redact values in the log lines of this process.

    Values that may occur by chance are not redacted: those of fewer than 4 characters, and words
    and numbers of fewer than 8.

    Args:
        values: The secret values.
        source: The source of values that belong to the whole process: they are redacted until the
            same source is read again. Empty: as long as the returned object exists.
    """
    secret = frozenset(value for value in values if _is_distinctive(value))
    global _current
    with _lock:
        hidden = _hidden.get(secret)
        if hidden is None:
            hidden = _hidden[secret] = Hidden(secret)
            _current = None
        if source:
            _sources[source] = hidden
    return hidden


def redact(text: str) -> str:
    """Replace every hidden value in a text; overlapping values are replaced together.

    A value is found in every spelling that `readings` decodes, whole or in part.
    """
    index = _index()
    if not index:
        return text
    found = list(_find(text, index))
    for reading in readings(text):
        found += (reading.place(*span) for span in _find(reading.text, index))
    parts: list[str] = []
    done = 0
    for start, end in _merged(found):
        parts += (text[done:start], REDACTED)
        done = end
    return "".join((*parts, text[done:])) if parts else text


def _find(text: str, index: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[int, int]]:
    """Yield the spans of the hidden values in a text.

    Values are indexed by their first characters, because a worker hides thousands of them.
    """
    last = len(text) - _MIN_SECRET + 1
    for i in [i for i in range(last) if text[i : i + _MIN_SECRET] in index]:
        values = index[text[i : i + _MIN_SECRET]]
        longest = next((len(value) for value in values if text.startswith(value, i)), 0)
        if longest:
            yield i, i + longest


def _merged(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield spans in order, with overlapping ones as one."""
    spans.sort()
    start = end = -1
    for first, last in spans:
        if first >= end:
            if end > start:
                yield start, end
            start = first
        end = max(end, last)
    if end > start:
        yield start, end


def _is_distinctive(value: str) -> bool:
    one_word = value.isalpha() or value.isdecimal()
    return len(value) >= (_MIN_WORD if one_word else _MIN_SECRET)


def _index() -> Mapping[str, tuple[str, ...]]:
    """Return the hidden values by their first characters, longest first."""
    global _current
    current = _current
    if current is None:
        with _lock:
            values = {value for hidden in list(_hidden.values()) for value in hidden.values}
            index: dict[str, list[str]] = {}
            for value in sorted(values, key=len, reverse=True):
                index.setdefault(value[:_MIN_SECRET], []).append(value)
            _current = current = {head: tuple(group) for head, group in index.items()}
    return current
