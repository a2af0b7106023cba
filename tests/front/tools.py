"""Tools as the SDK lists them."""

from __future__ import annotations

from typing import Any

from leaseway.sdk import Tool


def make_tool(name: str, **members: Any) -> Tool:
    plain: dict[str, Any] = {
        "server_id": "s",
        "original_name": name,
        "title": "",
        "description": "",
        "input_schema": {"type": "object"},
        "output_schema": None,
        "annotations": {},
        "extra": {},
        "shared": True,
    }
    return Tool(name=name, **{**plain, **members})
