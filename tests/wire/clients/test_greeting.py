"""Which MCP clients an unused instance serves."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.wire.clients.greeting import COMMON, LEGACY, MAX_NAME, MAX_SERVED, Greeting, is_modern
from leaseway.wire.clients.mcp_client import McpClient

VERSIONS = ["2025-06-18", "2025-11-25", "2026-07-28"]
CLIENTS = st.builds(
    McpClient,
    st.sampled_from(VERSIONS),
    st.sampled_from([{}, {"sampling": {}}]),
    st.sampled_from([{"name": "one", "version": "1"}, {"name": "other", "version": "1"}]),
)
GREETINGS = st.one_of(st.sampled_from([COMMON, LEGACY]), st.builds(Greeting.of, CLIENTS))


@settings(max_examples=300, deadline=None)
@given(GREETINGS, st.sampled_from(["", *VERSIONS]), GREETINGS)
def test_an_instance_serves_whom_it_greeted_for_and_a_modern_one_all_modern_clients(
    greeted: Greeting, version: str, wanted: Greeting
) -> None:
    serves = greeted.serves(version)
    is_usable = greeted == wanted or not version or (is_modern(version) and not wanted.is_legacy)
    assert is_usable == (not wanted.accepted.isdisjoint(serves))
    assert 0 < len(serves) <= MAX_SERVED
    assert all(len(name) <= MAX_NAME for name in serves)
