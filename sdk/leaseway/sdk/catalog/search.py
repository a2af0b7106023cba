"""Search for tools by their purpose, so that a model need not get hundreds of definitions.

Tools are ranked with BM25 over their names, descriptions and parameters, in memory.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

from leaseway.sdk.catalog.tools import Tool

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_a-zA-Z]+")
_NAME_WEIGHT: Final = 3
"""Weight of the words in a name, which usually state what the tool does."""
_MAX_QUERY: Final = 2_000
_MAX_WORDS: Final = 64
"""Words of a query, each of which may be one of every tool."""
_MAX_DESCRIBED: Final = 8_192
"""Characters of a tool's descriptions that are indexed."""
_ENDINGS: Final = ("ing", "ies", "es", "ed", "s", "e")
_MIN_STEM: Final = 3
_MAX_PARAMETERS: Final = 64
"""Parameters of a tool that are indexed."""
_SATURATION: Final = 1.5
"""BM25's k1: how soon more occurrences of a word stop to count."""
_LENGTH_WEIGHT: Final = 0.75
"""BM25's b: how much the length of a text matters, from 0 to 1."""


class ToolIndex:
    """A search index of tools.

    Args:
        tools: The tools, in any order.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = tuple(tools)
        self._scores = _scores([_words_of(tool) for tool in self._tools])

    def search(self, query: str, limit: int = 5) -> list[Tool]:
        """Return the tools that match a query best, best first.

        Args:
            query: The purpose of the tool in words; at most 2,000 characters are used.
            limit: Maximum number of tools.
        """
        found: defaultdict[int, float] = defaultdict(float)
        words = Counter(_words(query[:_MAX_QUERY]))
        for word, count in islice(words.items(), _MAX_WORDS):
            for index, score in self._scores.get(word, {}).items():
                found[index] += score * count
        ranked = sorted(found, key=lambda index: (-found[index], self._tools[index].name))
        return [self._tools[index] for index in ranked[:limit]]


def _scores(texts: Sequence[Sequence[str]]) -> dict[str, dict[int, float]]:
    """Return for each word what it adds to the BM25 score of each text that contains it.

    A word counts more if few texts have it, and less the more often one text repeats it. Long texts
    would win by their length alone, so their counts are scaled down.
    """
    if not texts:
        return {}
    average = sum(map(len, texts)) / len(texts)
    texts_of: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for index, text in enumerate(texts):
        scale = _SATURATION * (1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * len(text) / (average or 1))
        for word, count in Counter(text).items():
            texts_of[word][index] = count * (_SATURATION + 1) / (scale + count)
    for scores in texts_of.values():
        rarity = math.log((len(texts) + 1) / len(scores))
        for index in scores:
            scores[index] *= rarity
    return dict(texts_of)


def _words_of(tool: Tool) -> list[str]:
    names = _words(f"{tool.name} {tool.original_name} {tool.title}") * _NAME_WEIGHT
    parameters = tool.input_schema.get("properties")
    described = [tool.server_id, tool.description]
    if isinstance(parameters, dict):
        for name, schema in list(parameters.items())[:_MAX_PARAMETERS]:
            described += [name, _description(schema)]
    return names + _words(" ".join(described)[:_MAX_DESCRIBED])


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
