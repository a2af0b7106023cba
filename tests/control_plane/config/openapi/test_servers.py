"""Where the requests of a document's operations go."""

from __future__ import annotations

from typing import Any

import pytest

from leaseway.control_plane.config.openapi.operations import Imported, import_document

V1 = "https://api.example.com/v1"


def imported(
    document: Any = None, path: Any = None, operation: Any = None, address: str = ""
) -> Imported:
    """Import two operations: one with servers of its own, and one without."""

    def servers(given: Any) -> dict[str, Any]:
        urls = [given] if isinstance(given, str) else given
        listed = [url if isinstance(url, dict) else {"url": url} for url in urls or ()]
        return {"servers": listed} if given is not None else {}

    return import_document(
        {
            "openapi": "3.1.0",
            **servers(document),
            "paths": {
                "/own": {"get": {"operationId": "own", **servers(operation)}, **servers(path)},
                "/none": {"get": {"operationId": "none"}},
            },
        },
        address=address,
    )


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (V1, ""),
        (f"{V1}/", ""),
        ("https://API.example.com/v2", "/v2"),
        ("https://api.example.com:443/v2", "/v2"),
        ("https://api.example.com/v2", "/v2"),
        ("https://api.example.com", "/"),
        ("/v2", "/v2"),
        (["https://other.example.com", V1], ""),
        (["https://other.example.com", "https://api.example.com/v3"], "/v3"),
        ("https://uploads.example.com", "https://uploads.example.com"),
        ("http://api.example.com/v1", "http://api.example.com/v1"),
        ("https://api.example.com:8443/v1", "https://api.example.com:8443/v1"),
        ([{"url": "https://{region}.example.com/{v}", "variables": {
            "region": {"default": "eu", "enum": ["eu", "us"]}, "v": {"default": "v2"}}}],
         "https://eu.example.com/v2"),
    ],
)  # fmt: skip
def test_an_operation_or_its_path_may_have_a_server_of_its_own(own: Any, expected: str) -> None:
    for made in (imported(V1, path=own), imported(V1, path="https://x.test", operation=own)):
        assert made.base_url == V1
        assert {tool.name: tool.base_url for tool in made.tools} == {"own": expected, "none": ""}
        assert not made.skipped


@pytest.mark.parametrize(
    "own",
    ["https://{host}.example.com", "ftp://x.test", "https://u:p@x.test", "https://x.test?v=1", [5]],
)
def test_an_operation_without_a_usable_server_is_refused(own: Any) -> None:
    made = imported(V1, operation=[{"url": own}])
    assert [tool.name for tool in made.tools] == ["none"]
    assert "none of them is a usable address" in made.skipped[0].reason


def test_a_document_whose_paths_all_have_the_same_server_has_that_server() -> None:
    made = imported(path="https://api.example.com")
    assert made.base_url == "https://api.example.com"
    assert [tool.base_url for tool in made.tools] == ["", ""]


@pytest.mark.parametrize(
    ("document", "address", "base"),
    [
        (None, "https://shop.example.com/openapi.json", "https://shop.example.com"),
        ("/api/v3", "https://shop.example.com/docs/openapi.json", "https://shop.example.com/api/v3"),
        ("v3", "https://shop.example.com/docs/openapi.json", "https://shop.example.com/docs/v3"),
        ("//cdn.example.com", "https://shop.example.com/o.json", "https://cdn.example.com"),
        (V1, "https://shop.example.com/openapi.json", V1),
        ("/api/v3", "", ""),
        (None, "", ""),
    ],
)  # fmt: skip
def test_relative_servers_are_below_the_documents_address(
    document: Any, address: str, base: str
) -> None:
    assert imported(document, address=address).base_url == base


def test_an_own_path_follows_the_configured_server_if_the_document_has_only_a_path() -> None:
    made = imported("/api/v1", path="/api/v2")
    assert made.base_url == ""
    assert [tool.base_url for tool in made.tools] == ["/api/v2", ""]


def test_a_relative_server_of_a_file_is_below_the_address_that_the_file_says_it_has() -> None:
    own = {"openapi": "3.2.0", "$self": "https://api.example.com/docs/x", "paths": {}}
    assert import_document({**own, "servers": [{"url": "/v1"}]}).base_url == V1


def test_an_address_with_a_variable_that_has_no_default_is_none() -> None:
    server = {"url": "https://{at}.example.com", "variables": {"at": {"enum": ["eu"]}}}
    assert imported([server]).base_url == ""
