"""Foreign texts are searched in a time that grows with their length, and not with its square."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from leaseway.control_plane.config.formats.client_variables import is_of_client
from leaseway.control_plane.config.tree.yaml_tree import Leaf
from leaseway.data_plane.core.tools.paths import PathJudge
from leaseway.data_plane.core.tools.schema_work import SchemaWork, TooMuchWork
from leaseway.sdk import Tool
from leaseway.sdk.catalog.search import ToolIndex
from leaseway.spec.policy import Permissions
from leaseway.spec.references import expand, references
from leaseway.wire.secrets.secret_shapes import contains_secret

TOOL = Tool(
    name="",
    server_id="s",
    original_name="",
    title="",
    description="",
    input_schema={},
    output_schema=None,
    annotations={},
    extra={},
    shared=True,
)
MOST = 5.0
"""Seconds of the processor for each; those that grew with the square took minutes."""


def judge(text: str) -> object:
    return PathJudge(Permissions(denied_paths=("secrets",)), "/srv").denied({"a": [text] * 300})


def measure(text: str) -> None:
    with pytest.raises(TooMuchWork):
        SchemaWork({"anyOf": [{"pattern": f"{number}{text}"} for number in range(50)]})


@pytest.mark.parametrize(
    ("search", "text"),
    [
        (contains_secret, "-eyJ" * 50_000),
        (references, "${A:-" * 100_000),
        (lambda text: expand(text, {}), "${A:-" * 100_000),
        (lambda text: is_of_client(Leaf((1, 1), text, text)), "${a:" * 100_000),  # type: ignore[arg-type]
        (judge, "x" + "[" * 4_000),
        (measure, "[" * 19_000),
    ],
    ids=["secret", "references", "expand", "client", "paths", "pattern"],
)
def test_a_search_of_a_hostile_text_is_linear(search: Callable[[str], object], text: str) -> None:
    begun = time.process_time()
    search(text)
    assert time.process_time() - begun < MOST


@pytest.mark.parametrize(
    "text",
    [
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.sig",
        "--token=eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.",
        "key-of-mine-eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.s-g",
        "Authorization: eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.sig",
        "a.eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.sig",
        "--eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.sig",
        "9f1c-aaaa-bbbb-cccc-dddd-eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.sig",
    ],
)
def test_a_token_is_found_wherever_it_begins(text: str) -> None:
    assert contains_secret(text)


def test_a_query_of_very_many_words_finds_tools_by_its_first_ones() -> None:
    tools = [replace(TOOL, name=name, original_name=name) for name in ("first", "last")]
    words = " ".join(f"a{'b' * number}" for number in range(64))
    assert [tool.name for tool in ToolIndex(tools).search(f"first {words} last")] == ["first"]
