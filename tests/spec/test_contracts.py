"""What two processes of one server may write differently, and what they may not."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from leaseway.spec.contracts import same_content, same_contract, same_items

TOOL: dict[str, Any] = {
    "name": "search",
    "title": "Search",
    "description": "Since 2026-11-24, by pid 17.",
    "annotations": {"title": "Search", "readOnlyHint": True},
    "inputSchema": {
        "type": "object",
        "title": "Arguments of 17",
        "description": "Of pid 17.",
        "$defs": {
            "Node_17": {
                "type": "object",
                "properties": {
                    "kind": {"$ref": "#/$defs/Kind_17"},
                    "in": {"$ref": "#/$defs/Node_17"},
                },
                "required": ["kind", "in"],
            },
            "Kind_17": {"enum": ["bug", "task", "epic"], "description": "One of 3."},
        },
        "properties": {
            "since": {"type": ["string", "null"], "format": "date", "default": "2026-11-24"},
            "node": {"$ref": "#/$defs/Node_17"},
            "either": {"anyOf": [{"type": "string", "title": "A"}, {"type": "integer"}]},
            "description": {"type": "string", "examples": ["17"]},
            "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
        },
        "required": ["node", "either"],
    },
    "outputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}},
    "_meta": {"started": 17},
}


def shuffled(value: Any, source: random.Random) -> Any:
    """Return a definition with its sets and members in another order."""
    if isinstance(value, dict):
        names = list(value)
        source.shuffle(names)
        changed = {name: shuffled(value[name], source) for name in names}
        for name in ("enum", "required", "type", "anyOf"):
            if isinstance(changed.get(name), list):
                source.shuffle(changed[name])
        return changed
    return [shuffled(item, source) for item in value] if isinstance(value, list) else value


def encoded(tool: Any) -> bytes:
    return json.dumps(tool).encode()


@pytest.mark.parametrize("seed", range(5))
def test_another_process_may_use_other_texts_orders_and_names_of_definitions(seed: int) -> None:
    text = json.dumps(shuffled(TOOL, random.Random(seed)))
    other = text.replace("17", f"4{seed}").replace("2026-11-24", "2026-11-25")
    other = other.replace("One of 3.", "One of many.")
    assert same_contract(encoded(TOOL), other.encode())


def test_an_order_alone_is_no_other_content_and_a_text_is() -> None:
    assert same_content(encoded(TOOL), encoded(shuffled(TOOL, random.Random(3))))
    assert not same_content(encoded(TOOL), encoded({**TOOL, "description": "other"}))


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "another value of an enum": lambda tool: tool["inputSchema"]["$defs"]["Kind_17"]["enum"].append(
        "story"
    ),
    "a value that is no longer required": lambda tool: tool["inputSchema"]["required"].pop(),
    "an argument called description": lambda tool: tool["inputSchema"]["properties"].pop(
        "description"
    ),
    "a default that is gone": lambda tool: tool["inputSchema"]["properties"]["since"].pop(
        "default"
    ),
    "another order of places": lambda tool: tool["inputSchema"]["properties"]["pair"][
        "prefixItems"
    ].reverse(),
    "another reference": lambda tool: tool["inputSchema"]["properties"].update(
        node={"$ref": "#/$defs/Kind_17"}
    ),
    "another format": lambda tool: tool["inputSchema"]["properties"]["since"].update(
        format="date-time"
    ),
    "another result": lambda tool: tool["outputSchema"]["properties"]["n"].update(type="string"),
    "another hint": lambda tool: tool["annotations"].update(readOnlyHint=False),
    "another way to run": lambda tool: tool.update(execution={"taskSupport": "required"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_call_depends_on_may_not_differ(change: str) -> None:
    other = copy.deepcopy(TOOL)
    CHANGES[change](other)
    assert not same_contract(encoded(TOOL), encoded(other))


def test_definitions_that_differ_only_far_below_are_told_apart() -> None:
    def chain(last: str) -> bytes:
        named: dict[str, Any] = {
            f"d{n}": {"items": {"$ref": f"#/$defs/d{n + 1}"}} for n in range(40)
        }
        named["d40"] = {"type": last}
        return encoded({"name": "t", "inputSchema": {"$ref": "#/$defs/d0", "$defs": named}})

    assert not same_contract(chain("string"), chain("integer"))


@pytest.mark.parametrize("broken", [b"{", b"[" * 5_000, b"[]", b"null", b'{"name": "other"}'])
def test_a_definition_that_cannot_be_read_is_the_same_only_byte_for_byte(broken: bytes) -> None:
    assert same_contract(broken, broken)
    assert not same_contract(encoded(TOOL), broken)
    assert not same_content(encoded(TOOL), broken)


def test_prompts_and_resources_may_have_other_texts_and_another_order() -> None:
    one = [
        b'{"name":"a","title":"1","arguments":[{"name":"x","required":true},{"name":"y"}]}',
        b'{"name":"b"}',
    ]
    other = [
        b'{"name":"b","title":"B"}',
        b'{"name":"a","title":"2","arguments":[{"name":"y"},{"required":true,"name":"x"}]}',
    ]
    assert same_items(one, other)
    assert not same_items(one, one[:1])
    assert not same_items(one, [one[0].replace(b"true", b"false"), one[1]])
