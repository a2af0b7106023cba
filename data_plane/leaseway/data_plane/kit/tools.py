"""What a tool of the kit is, and how one fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["KitTool", "Refusal", "Reply"]


class Refusal(Exception):
    """A call can't be done as asked; the text is a sentence for the model."""


@dataclass(frozen=True)
class Reply:
    """What a tool answers: text for the model, and the same as data where it declares some."""

    text: str
    structured: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class KitTool:
    """A tool. All of them only read, so they may be called again at will.

    Attributes:
        name: Its name.
        title: Its name for people.
        description: What it does, for the model.
        input_schema: JSON Schema of its arguments, which are checked against it.
        run: Does it, from checked arguments; raises `Refusal`.
        output_schema: JSON Schema of its structured result, or None for text only.
    """

    name: str
    title: str
    description: str
    input_schema: Mapping[str, Any]
    run: Callable[[Mapping[str, Any]], Reply]
    output_schema: Mapping[str, Any] | None = None
