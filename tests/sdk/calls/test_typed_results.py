"""Results as instances of a type."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any, TypedDict, assert_type

import msgspec
import pytest
from pydantic import BaseModel
from tests.sdk.fakes import FakeControlPlane, FakeWorker, in_thread

from leaseway.sdk import (
    AsyncClient,
    Client,
    LeasewayError,
    ResultTypeError,
    ToolError,
    ToolResult,
)
from leaseway.sdk.calls.typed_results import decoder_for, typed_result
from leaseway.wire.errors import Reason


class Sky(Enum):
    CLEAR = "clear"
    RAIN = "rain"


class Weather(BaseModel):
    day: date
    degrees: float
    sky: Sky = Sky.CLEAR


@dataclass
class Point:
    x: int
    y: int


class Named(TypedDict):
    name: str


class Compact(msgspec.Struct):
    x: int


def structured(value: Any, *, text: str = "") -> bytes:
    content = [{"type": "text", "text": text}]
    return json.dumps({"content": content, "structuredContent": value}).encode()


def read(payload: bytes, result_type: Any, *, is_error: bool = False) -> Any:
    result = ToolResult(payload, is_error)
    return typed_result("time_now", result, result_type, decoder_for(result_type))


@pytest.mark.parametrize(
    ("result_type", "value", "expected"),
    [
        (
            Weather,
            {"day": "2026-11-22", "degrees": 4, "sky": "rain"},
            Weather(day=date(2026, 11, 22), degrees=4, sky=Sky.RAIN),
        ),
        (Point, {"x": 1, "y": 2}, Point(1, 2)),
        (Named, {"name": "Ada"}, {"name": "Ada"}),
        (Compact, {"x": 1}, Compact(1)),
        (dict[str, int], {"result": 5}, {"result": 5}),
        (list[Point], {"result": [{"x": 1, "y": 2}]}, [Point(1, 2)]),
        (list[Point], [{"x": 1, "y": 2}], [Point(1, 2)]),
        (int, {"result": 5}, 5),
        (int | None, {"result": None}, None),
        (tuple[int, str], {"result": [1, "a"]}, (1, "a")),
    ],
)
def test_structured_content_is_made_an_instance(
    result_type: Any, value: Any, expected: Any
) -> None:
    made = read(structured(value, text="not this"), result_type)
    assert made == expected
    assert type(made) is type(expected)


def test_without_structured_content_the_text_is_read() -> None:
    payload = json.dumps({"content": [{"type": "text", "text": '{"x": 1, "y": 2}'}]}).encode()
    assert read(payload, Point) == Point(1, 2)
    assert read(payload, str) == '{"x": 1, "y": 2}'


def test_a_mismatch_names_the_tool_the_type_and_three_errors() -> None:
    class Wide(BaseModel):
        a: int
        b: int
        c: int
        d: int
        e: int

    with pytest.raises(ResultTypeError) as caught:
        read(structured({"a": "secret", "e": 1}), Wide)
    message = str(caught.value)
    assert message.startswith(
        "The result of tool 'time_now' does not match Wide: a: Input should be"
    )
    assert "b: Field required; c: Field required; and 1 more." in message
    assert "secret" not in message
    assert caught.value.result.structured == {"a": "secret", "e": 1}
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, LeasewayError)
    assert caught.value.started == "yes"


def test_the_errors_of_a_wrapped_value_refer_to_the_value() -> None:
    with pytest.raises(ResultTypeError, match=r"not match list\[int\]: 1: Input should be"):
        read(structured({"result": [1, "x"]}), list[int])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            [{"type": "text", "text": "It rains."}],
            "text that is not JSON, which cannot be converted to Point",
        ),
        ([{"type": "image", "data": ""}], "and no text, which cannot be converted to Point"),
    ],
)
def test_a_text_that_is_not_json_is_an_error(content: list[Any], sentence: str) -> None:
    with pytest.raises(ResultTypeError, match=sentence):
        read(json.dumps({"content": content}).encode(), Point)


def test_a_tool_error_is_raised_with_the_result() -> None:
    payload = json.dumps({"content": [{"type": "text", "text": "No such city."}]}).encode()
    with pytest.raises(ToolError, match="Tool 'time_now' failed: No such city") as caught:
        read(payload, Point, is_error=True)
    assert caught.value.result.text == "No such city."
    assert caught.value.reason is Reason.SERVER_ERROR
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.result.text) == (str(caught.value), "No such city.")
    assert copy.result.is_error


def test_an_unsupported_type_is_named() -> None:
    class Opaque:
        pass

    with pytest.raises(TypeError, match=r"result_type is a dataclass, .* not .*Opaque"):
        decoder_for(Opaque)


@pytest.mark.parametrize("unknown", ["Nowhere", "list[Nowhere]"])
def test_an_unresolved_name_in_a_type_fails_before_the_call(unknown: Any) -> None:
    with pytest.raises(TypeError, match="name 'Nowhere' is not defined"):
        decoder_for(unknown)


def test_a_reader_is_made_once_for_each_type() -> None:
    assert decoder_for(Point) is decoder_for(Point)


async def test_a_call_returns_an_instance_of_the_type(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = lambda *_: structured({"x": 1, "y": 2})
    point = await client.call_tool("time_now", result_type=Point)
    assert_type(point, Point)
    assert point == Point(1, 2)
    points = await client.call_tool("time_now", on_progress=print, result_type=dict[str, int])
    assert_type(points, dict[str, int])
    assert points == {"x": 1, "y": 2}
    assert_type(await client.call_tool("time_now"), ToolResult)


async def test_an_unsupported_type_fails_before_the_call(
    client: AsyncClient, worker: FakeWorker
) -> None:
    wrong: Any = object()
    with pytest.raises(TypeError, match="result_type is"):
        await client.call_tool("time_now", result_type=wrong)
    assert not worker.calls


async def test_the_synchronous_client_returns_instances_too(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    worker.answer = lambda *_: structured({"x": 1, "y": 2})

    def work() -> None:
        with Client(plane.address) as client:
            point = client.call_tool("time_now", result_type=Point)
            assert_type(point, Point)
            assert point == Point(1, 2)
            session = client.session("a")
            assert session.call_tool("desk_open", roots=[], result_type=Point) == Point(1, 2)
            with pytest.raises(ResultTypeError):
                client.call_tool("time_now", result_type=Weather)

    await in_thread(work)


WITHOUT = """
import sys
for missing in sys.argv[1:]:
    sys.modules[missing] = None  # its import fails
from dataclasses import dataclass
from leaseway.sdk import ResultTypeError, ToolResult
from leaseway.sdk.calls.typed_results import decoder_for, typed_result

@dataclass
class Point:
    x: int

try:
    read = decoder_for(Point)
except ImportError as error:
    print(error)
else:
    print(typed_result("t", ToolResult(b'{"structuredContent": {"x": 1}}'), Point, read))
    try:
        typed_result("t", ToolResult(b'{"structuredContent": {"x": "a"}}'), Point, read)
    except ResultTypeError as error:
        print(error)
"""


def without(*missing: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *missing],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


def test_without_pydantic_msgspec_validates() -> None:
    assert without("pydantic") == [
        "Point(x=1)",
        "The result of tool 't' does not match Point: Expected `int`, got `str` - at `$.x`.",
    ]


def test_without_a_validator_the_error_names_what_to_install() -> None:
    (said,) = without("pydantic", "msgspec")
    assert said == (
        "result_type needs pydantic, or msgspec, and neither is installed: "
        "pip install 'leaseway[typed]'."
    )
