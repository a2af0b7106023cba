"""Names of imported tools, and of what stands in their paths."""

from __future__ import annotations

from typing import Any

import pytest

from leaseway.control_plane.config.openapi.operations import import_document


def test_the_order_of_a_document_does_not_decide_which_tool_has_a_name() -> None:
    names = {("/c", "GET"): "x", ("/b", "POST"): "x", ("/b", "GET"): "x", ("/a", "GET"): "x_2"}
    expected = {"/b GET": "x", "/b POST": "x_3", "/c GET": "x_4", "/a GET": "x_2"}
    for order in (list(names), list(names)[::-1]):
        paths: dict[str, Any] = {}
        for path, method in order:
            paths.setdefault(path, {})[method.lower()] = {"operationId": names[path, method]}
        made = import_document({"openapi": "3.1.0", "paths": paths})
        assert {f"{tool.endpoint} {tool.method}": tool.name for tool in made.tools} == expected


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/a/:id/b", "/a/{id}/b"),
        ("/a/{id:[0-9]+}", "/a/{id}"),
        ("/a/{*id}{?page,size}", "/a/{id}"),
        ("/a/{ID}", "/a/{id}"),
        ("/a/{id}/:id", "/a/{id}/:id"),
    ],
)
def test_a_path_may_name_its_parameters_as_a_route_of_a_framework(path: str, endpoint: str) -> None:
    parameters = [{"name": "id", "in": "path", "required": True}]
    paths = {path: {"get": {"parameters": parameters}}}
    made = import_document({"openapi": "3.0.3", "paths": paths})
    assert not made.skipped
    assert [tool.endpoint for tool in made.tools] == [endpoint]
