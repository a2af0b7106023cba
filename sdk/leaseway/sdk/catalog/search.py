"""Search for tools by their purpose, so that a model need not get hundreds of definitions.

Tools are ranked with BM25 over their names, descriptions and parameters, in memory. This needs the
package `rank-bm25`, which is imported when the first index is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from leaseway.sdk.catalog.tools import Tool

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_a-zA-Z]+")
_NAME_WEIGHT: Final = 3
"""Weight of the words in a name, which usually state what the tool does."""
_MAX_QUERY: Final = 2_000
_ENDINGS: Final = ("ing", "ies", "es", "ed", "s", "e")
_MIN_STEM: Final = 3
_MAX_PARAMETERS: Final = 64
"""Parameters of a tool that are indexed."""


class ToolIndex:
    """A search index of tools.

    Args:
        tools: The tools, in any order.

    Raises:
        ImportError: `rank-bm25` is not installed.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        from rank_bm25 import BM25Plus

        self._tools = tuple(tools)
        corpus = [_words_of(tool) for tool in self._tools]
        self._vocabulary = {word for words in corpus for word in words}
        self._ranking = BM25Plus(corpus) if self._vocabulary else None

    def search(self, query: str, limit: int = 5) -> list[Tool]:
        """Return the tools that match a query best, best first.

        Args:
            query: The purpose of the tool in words; at most 2,000 characters are used.
            limit: Maximum number of tools.
        """
        words = [word for word in _words(query[:_MAX_QUERY]) if word in self._vocabulary]
        if not words or self._ranking is None:
            return []
        scores: Sequence[float] = self._ranking.get_scores(words)
        # BM25+ gives all tools without a matching word the same score, the lowest.
        lowest = min(scores) if len(self._tools) > 1 else -1.0
        ranked = sorted(
            range(len(self._tools)), key=lambda index: (-scores[index], self._tools[index].name)
        )
        return [self._tools[index] for index in ranked[:limit] if scores[index] > lowest]


def _words_of(tool: Tool) -> list[str]:
    names = _words(f"{tool.name} {tool.original_name} {tool.title}") * _NAME_WEIGHT
    parameters = tool.input_schema.get("properties")
    described = [tool.server_id, tool.description]
    if isinstance(parameters, dict):
        for name, schema in list(parameters.items())[:_MAX_PARAMETERS]:
            described += [name, _description(schema)]
    return names + _words(" ".join(described))


def _description(schema: Any) -> str:
    value = schema.get("description") if isinstance(schema, dict) else None
    return value if isinstance(value, str) else ""


def _words(text: str) -> list[str]:
    return [_stem(word.lower()) for word in _WORDS.findall(text)]


def _stem(word: str) -> str:
    """Remove a common ending from a word, so that 'files' finds 'file'."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _MIN_STEM:
            return word.removesuffix(ending)
    return word
