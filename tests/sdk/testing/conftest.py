"""A fake with two servers, for the tests of `leaseway.sdk.testing`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leaseway.sdk.testing import CallContext, FakeLeaseway


@pytest.fixture
def fake() -> Iterator[FakeLeaseway]:
    """Serve `add` and `echo`, shared, and `desk_open` and `desk_read`, leased."""
    with FakeLeaseway() as made:

        @made.tool
        def add(a: int, b: int = 1) -> int:
            """Add two numbers."""
            return a + b

        @made.tool
        async def echo(text: str) -> str:
            return text

        desk = made.server("desk", stateful=True, prefix="desk_")

        @desk.tool(name="open")
        def open_file(name: str, context: CallContext) -> str:
            context.state["open"] = name
            return f"opened {name}"

        @desk.tool
        def read(context: CallContext) -> str:
            return str(context.state.get("open"))

        yield made
