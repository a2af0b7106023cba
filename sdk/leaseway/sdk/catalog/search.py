"""Finding tools by what they are for, so that a model need not be given hundreds of definitions.

Ranked by BM25 over a tool's names, description and parameters, in memory and without a network. It
needs the package `rank-bm25`, which is imported when the first index is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from leaseway.sdk.catalog.tools import Tool

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_a-zA-Z]+")
_NAME_WEIGHT: Final = 3
"""How often a word of the name counts; a tool is mostly named for what it does."""
_LONGEST_QUERY: Final = 2_000
_ENDINGS: Final = ("ing", "ies", "es", "ed", "s", "e")
_SHORTEST: Final = 3
_PARAMETERS: Final = 64
"""Parameters of a tool that are looked at."""


class ToolIndex:
    """Tools that can be searched.

    Args:
        tools: All that there are to find, in any order.

    Raises:
        ImportError: `rank-bm25` is not installed.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        from rank_bm25 import BM25Plus

        self._tools = tuple(tools)
        corpus = [_words_of(tool) for tool in self._tools]
        self._known = {word for words in corpus for word in words}
        self._ranking = BM25Plus(corpus) if self._known else None

    def search(self, query: str, limit: int = 5) -> list[Tool]:
        """Return the tools that fit a query best, the best first.

        Args:
            query: What the tool is to do, in words; its first 2,000 characters count.
            limit: The most tools.
        """
        words = [word for word in _words(query[:_LONGEST_QUERY]) if word in self._known]
        if not words or self._ranking is None:
            return []
        scores: Sequence[float] = self._ranking.get_scores(words)
        # Of a tool that has none of the words BM25+ says the same as of any other such.
        least = min(scores) if len(self._tools) > 1 else -1.0
        ranked = sorted(range(len(self._tools)), key=lambda at: (-scores[at], self._tools[at].name))
        return [self._tools[at] for at in ranked[:limit] if scores[at] > least]


def _words_of(tool: Tool) -> list[str]:
    names = _words(f"{tool.name} {tool.original_name} {tool.title}") * _NAME_WEIGHT
    parameters = tool.input_schema.get("properties")
    described = [tool.server_id, tool.description]
    if isinstance(parameters, dict):
        for name, schema in list(parameters.items())[:_PARAMETERS]:
            described += [name, _description(schema)]
    return names + _words(" ".join(described))


def _description(schema: Any) -> str:
    value = schema.get("description") if isinstance(schema, dict) else None
    return value if isinstance(value, str) else ""


def _words(text: str) -> list[str]:
    return [_stem(word.lower()) for word in _WORDS.findall(text)]


def _stem(word: str) -> str:
    """Return a word without its commonest ending, so that 'files' finds 'file'."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST:
            return word.removesuffix(ending)
    return word
