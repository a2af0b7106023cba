"""How a server's end is told."""

from __future__ import annotations

import pytest

from leaseway.data_plane.mcp.failures import server_lost


@pytest.mark.parametrize(
    ("cause", "needs_older"),
    [
        ("AttributeError: 'Server' object has no attribute 'list_tools'", True),
        ("ImportError: cannot import name 'FastMCP' from 'mcp.server' (/venv/mcp/a.py)", True),
        ("ModuleNotFoundError: No module named 'mcp.server.fastmcp'. This is mcp 2.x, ...", True),
        ("AttributeError: 'Server' object has no attribute 'port'", False),
        ("ModuleNotFoundError: No module named 'mcp'", False),
    ],
)
def test_a_server_for_an_older_mcp_package_ends_with_the_advice_to_pin_it(
    cause: str, needs_older: bool
) -> None:
    fault = server_lost("db", "exited with status 1", f"Traceback\n{cause}", cause, 1)
    assert f"it wrote last: {cause}" in fault.message
    assert ("uvx --with 'mcp<2' PACKAGE" in fault.message) == needs_older


@pytest.mark.parametrize(
    "cause",
    [
        'docker: Conflict. The container name "/mine" is already in use by container "c0ffee".',
        'Error: creating container storage: the container name "mine" is already in use by c0ffee.',
    ],
)
def test_a_command_that_names_its_container_ends_with_the_advice_not_to(cause: str) -> None:
    fault = server_lost("db", "exited with status 125", cause, cause, 125)
    advice = "(Each instance has a container of its own: leave out --name)"
    assert fault.message.endswith(f"{cause} {advice}")
