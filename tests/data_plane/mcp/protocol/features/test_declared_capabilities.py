"""What a server has beside tools, as it declares it at its handshake."""

from __future__ import annotations

from typing import Any

import pytest
from mcp_types import ServerCapabilities

from leaseway.data_plane.mcp.protocol.features.handshake import capabilities_of


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        ({}, []),
        ({"tools": {"listChanged": True}, "experimental": {"x": {}}}, []),
        ({"resources": {"subscribe": False}}, ["resources"]),
        ({"resources": {"subscribe": True}, "logging": {}}, ["logging", "resources", "subscribe"]),
        ({"prompts": {}, "completions": {}}, ["completions", "prompts"]),
    ],
)
def test_what_a_server_declares_beside_tools_is_recorded(
    declared: dict[str, Any], found: list[str]
) -> None:
    assert capabilities_of(ServerCapabilities.model_validate(declared)) == found


def test_a_server_without_capabilities_has_nothing() -> None:
    assert capabilities_of(None) == []
