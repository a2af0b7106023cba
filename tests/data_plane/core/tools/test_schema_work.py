"""No schema of a server and no arguments of a caller keep the event loop busy."""

import contextlib
import json
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.pace import slowness

from leaseway.data_plane.calls.admission import check_arguments
from leaseway.data_plane.core.calls.incoming import IncomingCall
from leaseway.data_plane.core.tools.arguments import ArgumentCheck, LazyArgumentCheck
from leaseway.data_plane.core.tools.schema_check import SchemaNotCompiled
from leaseway.data_plane.core.tools.schema_work import MAX_UNITS, SchemaWork, TooMuchWork
from leaseway.data_plane.core.tools.toolset import ToolPlan
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

LONGEST_STALL = 0.05

BLOCK = {"$ref": "#/$defs/block"}
DOCUMENT: dict[str, Any] = {
    "$defs": {
        "block": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": "text"}, "text": {"type": "string"}},
                    "required": ["kind", "text"],
                },
                *(
                    {
                        "type": "object",
                        "properties": {
                            "blocks": {"type": "array", "items": BLOCK},
                            "kind": {"const": kind},
                        },
                        "required": ["kind", "blocks"],
                    }
                    for kind in ("list", "quote", "column")
                ),
            ]
        }
    },
    "type": "object",
    "properties": {"document": BLOCK},
}


class Call:
    """What `check_arguments` uses of an active call."""

    def __init__(self, arguments: bytes) -> None:
        self.call = IncomingCall(server_id="notes", tool="save")
        self.arguments = arguments


def lazy(check: ArgumentCheck | None) -> LazyArgumentCheck | None:
    if check is None:
        return None
    made = LazyArgumentCheck(b"{}", is_quick=True)
    made.check = check
    return made


def outcome(check: ArgumentCheck, arguments: object) -> Fault | None:
    plan = ToolPlan("save", "save", b"{}", lazy(check))
    try:
        check_arguments(Call(json.dumps(arguments).encode()), plan)  # type: ignore[arg-type]
    except Fault as fault:
        return fault
    return None


def document(depth: int, leaf: object) -> dict[str, Any]:
    block: Any = {"kind": "text", "text": leaf}
    for _ in range(depth):
        block = {"blocks": [block], "kind": "column"}
    return {"document": block}


def doubled(levels: int, keyword: str, leaf: object = True) -> dict[str, Any]:
    """Return a schema whose references double at each level."""
    definitions: dict[str, Any] = {
        f"s{n}": {keyword: [{"$ref": f"#/$defs/s{n + 1}"}] * 2} for n in range(levels)
    }
    definitions[f"s{levels}"] = leaf
    return {"$defs": definitions, "properties": {"x": {"$ref": "#/$defs/s0"}}}


def chain(length: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {
        f"s{n}": {"$ref": f"#/$defs/s{n + 1}"} for n in range(length)
    } | {f"s{length}": True}
    return {"$defs": definitions, "properties": {"x": {"$ref": "#/$defs/s0"}}}


def property_of(schema: object) -> dict[str, Any]:
    return {"properties": {"x": schema}}


@pytest.mark.parametrize("depth", [1, 8, 30, 60])  # each has two of the 128 levels
def test_a_deep_document_is_judged_by_its_leaf(depth: int) -> None:
    check = ArgumentCheck(DOCUMENT)
    assert outcome(check, document(depth, "words")) is None
    began = time.thread_time()
    wrong = outcome(check, document(depth, 1))
    assert time.thread_time() - began < LONGEST_STALL * slowness()
    assert wrong is not None
    assert wrong.reason is Reason.INVALID_ARGUMENTS
    assert bool(wrong.violations) == (depth == 1)


SLOW: list[tuple[str, Any, Any]] = [
    *(
        (f"{levels} doublings of {key}", doubled(levels, key, leaf), {"x": 1})
        for levels in (10, 18, 40)
        for key in ("allOf", "anyOf", "oneOf")
        for leaf in ({"type": "string"}, {"type": "integer"})
    ),
    ("a chain", chain(20_000), {"x": 1}),
    ("nested items", json.loads('{"items":' * 900 + "{}" + "}" * 900), {"x": 1}),
    ("100,000 constants", property_of({"enum": [{"a": n} for n in range(100_000)]}), {"x": {}}),
    (
        "constants for each item",
        property_of({"items": {"enum": [{"a": n} for n in range(2_000)]}}),
        {"x": [{"a": "?"}] * 30_000},
    ),
    ("required names", property_of({"required": [f"n{n}" for n in range(70_000)]}), {"x": {}}),
    (
        "required names of each item",
        property_of({"items": {"required": [f"n{n}" for n in range(3_000)]}}),
        {"x": [{f"n{n}": 1 for n in range(3_000)}] * 20},
    ),
    ("backtracking", property_of({"pattern": r"(a*)*b(?!c)"}), {"x": "a" * 1_000_000}),
    (
        "backtracking in each item",
        property_of({"items": {"pattern": r"^(\w+\s?)*(?!x)$"}}),
        {"x": ["aa " * 100 + "!"] * 10_000},
    ),
    ("overlapping repetition", property_of({"pattern": "1[01]{1000}z"}), {"x": "10" * 2_000_000}),
    (
        "overlapping repetition in each item",
        property_of({"items": {"pattern": "1.{90}z"}}),
        {"x": ["10" * 500] * 3_000},
    ),
    ("a large expression", property_of({"pattern": "(?:a{1000}){1000}"}), {"x": "a"}),
    (
        "large expressions",
        {"properties": {f"p{n}": {"pattern": rf"[\p{{L}}]{{{n}}}"} for n in range(300)}},
        {"p1": "a"},
    ),
    (
        "patterns of names",
        property_of({"patternProperties": {f"k.*{n}": {} for n in range(1_000)}}),
        {"x": {f"k{n}": 1 for n in range(5_000)}},
    ),
    (
        "unique integers",
        property_of({"uniqueItems": True}),
        {"x": [2**63 + n for n in range(3_000)]},
    ),
    (
        "unique large integers",
        property_of({"uniqueItems": True}),
        {"x": [10**4000 + n for n in range(200)]},
    ),
    (
        "multiples",
        property_of({"items": {"multipleOf": 0.001}}),
        {"x": [1e300] * 90_000},
    ),
    (
        "many branches",
        property_of({"items": {"anyOf": [{"required": [f"k{n}"]} for n in range(500)]}}),
        {"x": [{}] * 30_000},
    ),
    (
        "embedded schemas",
        {"$defs": {"e": {"$id": "http://e.example/", **doubled(40, "allOf")}}},
        {"x": 1},
    ),
    (
        "encoded references",
        json.loads(json.dumps(doubled(40, "allOf")).replace("#/$defs", "#/%24defs")),
        {"x": 1},
    ),
    (
        "anchors",
        {
            "$defs": {
                f"s{n}": {"$anchor": f"s{n}", "allOf": [{"$ref": f"#s{n + 1}"}] * 2}
                for n in range(40)
            }
            | {"end": {"$anchor": "s40"}},
            "properties": {"x": {"$ref": "#s0"}},
        },
        {"x": 1},
    ),
    ("wrong values", property_of({"items": {"type": "string"}}), {"x": [1] * 90_000}),
    ("nulls", {"properties": {"x": {"items": {"type": "string"}}}}, {"x": [None] * 90_000}),
]


@pytest.mark.parametrize(
    ("schema", "arguments"), [case[1:] for case in SLOW], ids=[c[0] for c in SLOW]
)
def test_neither_compiling_nor_checking_stalls_the_loop(schema: Any, arguments: Any) -> None:
    encoded = json.dumps(arguments).encode()
    assert len(encoded) <= bounds.MAX_ARGUMENTS
    longest(schema, [arguments])


def longest(schema: Any, many: list[Any]) -> None:
    """Compile a schema and check arguments, each in less than the longest stall."""
    check = None
    with contextlib.suppress(SchemaNotCompiled):
        check = ArgumentCheck(schema)
    assert seconds_of(partial(compile_again, schema)) < LONGEST_STALL * slowness(), "compiling"
    for arguments in many if check is not None else ():
        encoded = json.dumps(arguments).encode()
        parsing = seconds_of(partial(json.loads, encoded))
        took = seconds_of(partial(check_again, check, encoded))
        assert took < LONGEST_STALL * slowness() + 2 * parsing, "checking"


def compile_again(schema: Any) -> None:
    with contextlib.suppress(SchemaNotCompiled):
        ArgumentCheck(schema)


def check_again(check: ArgumentCheck | None, encoded: bytes) -> None:
    plan = ToolPlan("save", "save", b"{}", lazy(check))
    with contextlib.suppress(Fault):
        check_arguments(Call(encoded), plan)  # type: ignore[arg-type]


def seconds_of(work: Callable[[], object]) -> float:
    """Return the CPU time of some work: the least of some tries, without what else happens."""
    shortest = 60.0
    for _ in range(4):
        began = time.thread_time()
        work()
        shortest = min(shortest, time.thread_time() - began)
        if shortest < LONGEST_STALL / 2:
            break
    return shortest


_KEYWORDS = ["anyOf", "allOf", "oneOf", "properties", "items", "additionalProperties", "if"]
_KEYWORDS += ["contains", "patternProperties", "not", "unevaluatedProperties", "required"]


class Invented:
    """Random schemas with references, and arguments that follow their keywords."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = [f"d{n}" for n in range(self._random.randint(1, 12))]

    def document(self) -> dict[str, Any]:
        definitions = {name: self.schema(0) for name in self._names}
        return {"$defs": definitions, "properties": {"a": self.schema(0), "b": self.schema(1)}}

    def schema(self, depth: int) -> Any:
        pick = self._random.random()
        if depth > 3 or pick < 0.35:
            return {"$ref": f"#/$defs/{self._random.choice(self._names)}"}
        if pick < 0.45:
            return self._random.choice(
                [
                    {"type": "string"},
                    {"type": "integer", "multipleOf": 0.01},
                    {"const": "a"},
                    {"uniqueItems": True},
                    {"pattern": "(a+)+(?!b)c"},
                    {"enum": [1, "a", {"a": 1}]},
                    {"not": {}},
                ]
            )
        made: dict[str, Any] = {}
        for _ in range(self._random.randint(1, 2)):
            keyword = self._random.choice(_KEYWORDS)
            if keyword in ("anyOf", "allOf", "oneOf"):
                made[keyword] = [self.schema(depth + 1) for _ in range(self._random.randint(1, 4))]
            elif keyword in ("properties", "patternProperties"):
                made[keyword] = {name: self.schema(depth + 1) for name in "ab"}
            elif keyword == "required":
                made[keyword] = [self._random.choice("abc")]
            elif keyword == "if":
                made |= {part: self.schema(depth + 1) for part in ("if", "then", "else")}
            else:
                made[keyword] = self.schema(depth + 1)
        return made

    def value(self, depth: int) -> Any:
        pick = self._random.random()
        if depth <= 0 or pick < 0.1:
            return self._random.choice(["a", "a" * 300, 1, 1.5, None, 2**70, []])
        if pick < 0.5:
            return [self.value(depth - 1) for _ in range(self._random.randint(1, 2))]
        return {name: self.value(depth - 1) for name in self._random.choice(["a", "b", "ab"])}


@pytest.mark.parametrize("seed", range(150))
def test_no_invented_schema_and_arguments_stall_the_loop(seed: int) -> None:
    made = Invented(seed)
    schema = made.document()
    longest(schema, [{"a": made.value(depth), "b": made.value(depth)} for depth in (2, 6, 9, 12)])


def test_what_servers_really_use_is_compiled_and_checked() -> None:
    uuid = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
    rows = {"items": {"properties": {f"c{n}": {"type": "number"} for n in range(20)}}}
    check = ArgumentCheck(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {
                "id": {"pattern": uuid},
                "title": {"pattern": "^.{1,1000}$"},
                "mail": {"pattern": r"^[^@\s]+@[^@\s]+\.[a-z]{2,63}$"},
                "labels": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
                "body": {"type": "string"},
                "rows": rows,
                "schema": {"$ref": "http://json-schema.org/draft-07/schema#"},
            },
        }
    )
    fitting = {
        "id": "3f0c9a4b-e7d2-1c55-aaaa-0123456789ab",
        "title": "t",
        "mail": "a@b.example",
        "labels": [f"l{n}" for n in range(500)],
        "body": "x" * 2_000_000,
        "rows": [{f"c{n}": n for n in range(20)}] * 2_000,
        "schema": {"type": "object"},
    }
    assert outcome(check, fitting) is None
    assert outcome(check, fitting | {"mail": "nobody"}) is not None
    assert outcome(check, fitting | {"labels": ["l", "l"]}) is not None
    ids = ArgumentCheck(property_of({"uniqueItems": True}))
    assert outcome(ids, {"x": [10**17 + n for n in range(900)]}) is None


def test_work_is_counted_for_each_depth_and_alternatives_count_once() -> None:
    flat = SchemaWork({"properties": {f"p{n}": {"type": "string"} for n in range(50)}})
    both = SchemaWork({"allOf": [{"properties": {"p": {"type": "string"}}}] * 50})
    assert both.by_depth[1] == 50 * flat.by_depth[1]
    assert SchemaWork(DOCUMENT).is_recursive
    assert (
        SchemaWork(doubled(8, "allOf")).most * 100
        < MAX_UNITS
        < SchemaWork(doubled(18, "allOf")).most
    )
    with pytest.raises(TooMuchWork, match="another document"):
        SchemaWork({"$ref": "http://127.0.0.1:9/schema.json"})
