"""The calls of a scripted model, and what the agents of all frameworks print."""

import json
from collections.abc import Sequence

CALLS: Sequence[tuple[str, dict[str, object]]] = (
    ("add", {"a": 1}),
    ("add", {"a": 1, "config": "x", "self": "y"}),
    ("add", {"a": "x"}),
    ("broken", {}),
    ("picture", {}),
    ("count", {"step": 1}),
    ("add", {"a": 2}),
    ("count", {"step": 1}),
)
"""The calls of the model in order; then it answers that it is done."""


def show(results: Sequence[str], answer: object) -> None:
    """Print the results that the model received, and the agent's answer."""
    print(json.dumps({"results": list(results), "answer": str(answer)}))
