"""Public results as `json`, pydantic, FastAPI, pickle and copy need them."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from typing import Any

import pydantic
import pytest

from leaseway import sdk
from leaseway.sdk import Completion, Lease, PromptResult, ResourceResult, Tool, ToolList, ToolResult
from leaseway.sdk.leases.lease import ClientLease
from leaseway.sdk.transport.workers import WorkerRun
from leaseway.wire.names import LeaseKey

PAYLOAD = b'{"content":[{"type":"text","text":"a"}],"structuredContent":{"n":1}}'
TOOL = Tool(
    name="add",
    server_id="desk",
    original_name="add",
    title="",
    description="Add.",
    input_schema={"type": "object"},
    output_schema=None,
    annotations={},
    extra={},
    shared=True,
)
LEASE = Lease(
    ClientLease(LeaseKey("", "s", "desk"), "run-1", WorkerRun("w1", "run", "127.0.0.1:1"), True)
)
LISTS: list[Any] = [
    ToolList([TOOL], 7, ["b"], None),
    sdk.ResourceList([], 7, []),
    sdk.PromptList([], 7, []),
    sdk.ResourceTemplateList([], 7, []),
]
RESULTS = [
    ToolResult(PAYLOAD, new_lease=LEASE),
    ToolResult(PAYLOAD, is_error=True),
    PromptResult(b'{"messages":[]}'),
    ResourceResult(b'{"contents":[]}'),
    Completion(b'{"completion":{"values":["a"]}}'),
]
DATACLASSES = [
    getattr(sdk, name) for name in sdk.__all__ if dataclasses.is_dataclass(getattr(sdk, name))
]


def named(value: Any) -> str:
    return type(value).__name__


@pytest.mark.parametrize("result", [*RESULTS, LEASE], ids=named)
def test_a_result_is_plain_data_for_json_and_pydantic(result: Any) -> None:
    plain = result.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert json.loads(json.dumps(result, default=dict)) == plain
    assert dict(result) == plain, "FastAPI encodes a route's result like this"
    adapter = pydantic.TypeAdapter(type(result))
    assert json.loads(adapter.dump_json(result)) == plain
    assert adapter.json_schema()["type"] == "object"
    assert adapter.validate_python(result) is result

    model = pydantic.create_model("Answer", result=(type(result), ...))
    assert json.loads(model(result=result).model_dump_json()) == {"result": plain}
    with pytest.raises(pydantic.ValidationError, match="must be a"):
        model(result=3)
    undeclared = pydantic.TypeAdapter(dict[str, Any]), pydantic.create_model("Any", result=(Any, 0))
    assert json.loads(undeclared[0].dump_json({"result": result})) == {"result": plain}
    assert json.loads(undeclared[1](result=result).model_dump_json()) == {"result": plain}


@pytest.mark.parametrize("result", RESULTS, ids=named)
def test_a_result_is_read_from_its_plain_data(result: Any) -> None:
    again = type(result).from_dict(json.loads(json.dumps(result.to_dict())))
    assert again.to_dict() == result.to_dict()
    assert getattr(again, "is_error", None) == getattr(result, "is_error", None)
    assert pydantic.TypeAdapter(type(result)).validate_python(result.to_dict()).raw == again.raw


@pytest.mark.parametrize("value", [*RESULTS, LEASE, *LISTS, TOOL], ids=named)
def test_public_values_can_be_pickled_and_copied(value: Any) -> None:
    for again in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value), copy.copy(value)):
        assert type(again) is type(value)
        assert repr(again) == repr(value)


@pytest.mark.parametrize("items", LISTS, ids=named)
def test_a_list_of_the_catalog_is_a_tuple_for_everyone(items: Any) -> None:
    assert isinstance(items, tuple)
    pending = getattr(items, "pending", None)
    again: Any = pickle.loads(pickle.dumps(items))
    assert (again, again.registry_version, again.pending) == (items, 7, pending)
    adapter = pydantic.TypeAdapter(type(items))
    assert len(json.loads(adapter.dump_json(items))) == len(items)
    assert adapter.json_schema()["type"] == "array"


def test_a_list_of_tools_is_written_with_its_tools() -> None:
    (tool,) = json.loads(pydantic.TypeAdapter(ToolList).dump_json(LISTS[0]))
    assert tool == json.loads(json.dumps(dataclasses.asdict(TOOL)))


@pytest.mark.parametrize("kind", DATACLASSES, ids=lambda kind: kind.__name__)
def test_pydantic_has_a_schema_for_each_public_dataclass(kind: Any) -> None:
    assert pydantic.TypeAdapter(kind).json_schema()["type"] == "object"
