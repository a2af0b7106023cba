"""Redaction: values that must not appear in any text that leaves the process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Final
from weakref import WeakValueDictionary

_REDACTED: Final = "[redacted]"


_SHORTEST_SECRET: Final = 4  # shorter ones would blank out ordinary text and gain nothing


_LONGER_THAN_WORDS: Final = 8


_hidden: Final[WeakValueDictionary[frozenset[str], Hidden]] = WeakValueDictionary()


_sources: Final[dict[str, Hidden]] = {}


_current: Mapping[str, tuple[str, ...]] | None = {}


_lock = threading.Lock()


class Hidden:
    """Values that no log line shows while this object is kept."""

    __slots__ = ("__weakref__", "values")

    def __init__(self, values: frozenset[str]) -> None:
        self.values = values


def hide(values: Iterable[str], source: str = "") -> Hidden:
    """Keep values out of the log lines of this process.

    Values that a line could well hold by chance are left alone: those of fewer than 4 characters,
    and those of fewer than 8 that are one word or one number.

    Args:
        values: What is not to be shown.
        source: Where they were read, for what belongs to the process as a whole: it stays hidden
            until the same source is read again. Empty: as long as what is returned is kept.
    """
    wanted = frozenset(value for value in values if _tells(value))
    global _current
    with _lock:
        hidden = _hidden.get(wanted)
        if hidden is None:
            hidden = _hidden[wanted] = Hidden(wanted)
            _current = None
        if source:
            _sources[source] = hidden
    return hidden


def redact(text: str) -> str:
    """Return a text with every hidden value replaced; values that overlap are replaced as one.

    Values are looked up by their first characters: a worker hides thousands of spellings.
    """
    index = _index()
    if not index:
        return text
    parts: list[str] = []
    start = end = done = 0
    last = len(text) - _SHORTEST_SECRET + 1
    for i in [i for i in range(last) if text[i : i + _SHORTEST_SECRET] in index]:
        found = index[text[i : i + _SHORTEST_SECRET]]
        longest = next((len(value) for value in found if text.startswith(value, i)), 0)
        if not longest:
            continue
        if i >= end:
            if end:
                parts += (text[done:start], _REDACTED)
                done = end
            start = i
        end = max(end, i + longest)
    return "".join((*parts, text[done:start], _REDACTED, text[end:])) if end else text


def _tells(value: str) -> bool:
    one_word = value.isalpha() or value.isdecimal()
    return len(value) >= (_LONGER_THAN_WORDS if one_word else _SHORTEST_SECRET)


def _index() -> Mapping[str, tuple[str, ...]]:
    """Return what is hidden by its first characters, the longest of them first."""
    global _current
    current = _current
    if current is None:
        with _lock:
            values = {value for hidden in list(_hidden.values()) for value in hidden.values}
            index: dict[str, list[str]] = {}
            for value in sorted(values, key=len, reverse=True):
                index.setdefault(value[:_SHORTEST_SECRET], []).append(value)
            _current = current = {head: tuple(each) for head, each in index.items()}
    return current
