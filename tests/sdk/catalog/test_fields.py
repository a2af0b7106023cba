"""What the catalog says of an item is what callers see of it: no field is left behind."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from google.protobuf.message import Message

from leaseway.sdk.catalog.introductions import ServerIntroduction
from leaseway.sdk.catalog.prompts_resources import Prompt, Resource
from leaseway.sdk.catalog.tools import Tool
from leaseway.v1 import catalog_pb2

ITEMS: list[tuple[type[Message], Any, set[str]]] = [
    (catalog_pb2.Tool, Tool, set()),
    (catalog_pb2.Prompt, Prompt, set()),
    (catalog_pb2.Resource, Resource, {"is_template"}),  # its class says that
    (catalog_pb2.Introduction, ServerIntroduction, set()),
]


@pytest.mark.parametrize(("message", "item", "unseen"), ITEMS)
def test_callers_see_every_field_of_an_item(
    message: type[Message], item: type[Any], unseen: set[str]
) -> None:
    told = {field.name for field in message.DESCRIPTOR.fields}
    assert told - unseen == {field.name for field in fields(item)}
