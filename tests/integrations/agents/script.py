"""What a scripted model asks for, and what the agents of all frameworks print of it."""

import json
from collections.abc import Sequence

CALLS: Sequence[tuple[str, dict[str, object]]] = (
    ("add", {"a": 1}),
    ("add", {"a": 1, "config": "x"}),
    ("add", {"a": "x"}),
    ("broken", {}),
    ("picture", {}),
    ("count", {"step": 1}),
    ("add", {"a": 2}),
    ("count", {"step": 1}),
)
"""The tools that the model calls, one after the other, before it says that it is done."""


def show(told: Sequence[str], answer: object) -> None:
    """Print what the model was told of its calls, and what the agent said in the end."""
    print(json.dumps({"told": list(told), "answer": str(answer)}))
