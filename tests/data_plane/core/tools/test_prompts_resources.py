"""Admission of requests for prompts and resources, and URI filters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leaseway.data_plane.core.tools.policy import TOOLS_CALL
from leaseway.data_plane.core.tools.prompts_resources import (
    METHODS,
    SUBSCRIBE,
    AdmittedRequest,
    CompiledPromptsResources,
    admit,
    compile_prompts,
    judged_parts,
)
from leaseway.spec.filters.uris import UriFilter, as_read
from leaseway.spec.rules import expressions
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ROOTS_CHANGED

OFFERED = CompiledPromptsResources(
    prompts={"greet": "hello_greet"},
    uris=UriFilter(["note://*"], ["note://secret/*", "file:///etc/*"]),
)


def ask(
    method: str, prompts_resources: CompiledPromptsResources = OFFERED, **params: Any
) -> AdmittedRequest:
    return admit(prompts_resources, "notes", method, json.dumps(params).encode())


def refused(method: str, **params: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        ask(method, **params)
    return caught.value


def complete(ref: Any, argument: Any = None) -> AdmittedRequest:
    argument = {"name": "a", "value": ""} if argument is None else argument
    return ask("completion/complete", ref=ref, argument=argument)


def test_params_are_encoded_on_one_line_without_meta() -> None:
    params = b'{"name": "greet",\n "arguments": {"who": "a\\nb"},\r\n "_meta": {"mine": 1}}'
    asked = admit(OFFERED, "notes", "prompts/get", params)
    assert asked.name == "greet"
    assert asked.meta == {"mine": 1}
    assert b"\n" not in asked.params
    assert json.loads(asked.params) == {"name": "greet", "arguments": {"who": "a\nb"}}


def test_a_prompt_is_found_by_the_servers_name_only() -> None:
    fault = refused("prompts/get", name="hello_greet")
    assert fault.reason is Reason.TOOL_NOT_FOUND
    assert "has no prompt hello_greet" in fault.message


def test_a_misspelt_prompt_is_answered_with_the_nearest() -> None:
    fault = refused("prompts/get", name="greeet")
    assert "Did you mean greet?" in fault.message
    assert fault.metadata == {"nearest": "greet"}


@pytest.mark.parametrize("method", ["resources/read", SUBSCRIBE])
def test_a_uri_must_pass_the_filter(method: str) -> None:
    assert ask(method, uri="note://a").name == "note://a"
    fault = refused(method, uri="file:///etc/passwd")
    assert fault.reason is Reason.TOOL_NOT_FOUND
    assert "resource file:///etc/passwd" in fault.message


def test_completions_are_limited_to_exposed_prompts_and_uris() -> None:
    assert complete({"type": "ref/prompt", "name": "greet"}).name == "greet"
    assert complete({"type": "ref/resource", "uri": "note://{id}"}).name == "note://{id}"
    for ref in (
        {"type": "ref/prompt", "name": "x"},
        {"type": "ref/resource", "uri": "file:///etc/{x}"},
    ):
        with pytest.raises(Fault) as caught:
            complete(ref)
        assert caught.value.reason is Reason.TOOL_NOT_FOUND


def test_a_server_gets_one_value_of_the_argument_that_is_being_completed() -> None:
    known = {"path": "/etc", "other": "b"}
    asked = ask(
        "completion/complete",
        ref={"type": "ref/prompt", "name": "greet"},
        argument={"name": "path", "value": "a"},
        context={"arguments": known},
    )
    assert json.loads(asked.params)["context"] == {"arguments": {"other": "b"}}
    assert judged_parts(asked).arguments == {"path": "a", "other": "b"}


@pytest.mark.parametrize(
    ("method", "params", "where"),
    [
        ("prompts/get", {}, "name"),
        ("prompts/get", {"name": 1}, "name"),
        ("resources/read", {}, "uri"),
        ("resources/read", {"uri": ""}, "uri"),
        ("resources/read", {"uri": "note://a\n"}, "uri"),
        ("resources/read", {"uri": "n" * (bounds.MAX_URI + 1)}, "uri"),
        (SUBSCRIBE, {"uri": ["note://a"]}, "uri"),
        ("completion/complete", {}, "argument"),
        ("completion/complete", {"argument": {"name": "a"}}, "argument"),
        ("completion/complete", {"argument": {"name": "a", "value": "b"}}, "ref"),
        (
            "completion/complete",
            {"argument": {"name": "a", "value": "b"}, "ref": {"type": "ref/prompt"}},
            "ref.name",
        ),
    ],
)
def test_invalid_params_are_refused_with_their_path(
    method: str, params: dict[str, Any], where: str
) -> None:
    fault = refused(method, **params)
    assert fault.reason is Reason.INVALID_ARGUMENTS
    assert [path for path, _ in fault.violations] == [where]
    assert "note://a\n" not in fault.message


@pytest.mark.parametrize("params", [b"[]", b"{", b'"x"'])
def test_params_that_are_no_object_are_refused(params: bytes) -> None:
    with pytest.raises(Fault) as caught:
        admit(OFFERED, "notes", "resources/read", params)
    assert caught.value.reason is Reason.INVALID_ARGUMENTS


def test_other_methods_do_not_exist() -> None:
    for method in ("tools/call", "resources/unsubscribe", "initialize", "x" * 1000):
        fault = refused(method)
        assert fault.reason is Reason.INVALID_REQUEST
        assert len(fault.message) < 300


def test_a_prompt_whose_exposed_name_is_taken_works_by_its_original_name() -> None:
    recorded = [b'{"name":"one"}', b'{"name":"two"}']
    exposed = [("one", "p_one", False), ("two", "p_two", True)]
    assert compile_prompts(recorded, exposed) == {"one": "p_one", "two": "p_two"}


@pytest.mark.parametrize("recorded", [b"[]", b"{}", b'{"name":1}', b"{"])
def test_a_recorded_prompt_that_is_none_is_refused(recorded: bytes) -> None:
    with pytest.raises(ValueError, match="recorded prompt"):
        compile_prompts([recorded], [])


def test_an_exposed_prompt_must_have_been_listed() -> None:
    with pytest.raises(ValueError, match="prompt two"):
        compile_prompts([b'{"name":"one"}'], [("two", "two", False)])


def test_other_lists_than_the_recorded_are_noticed() -> None:
    prompts_resources = CompiledPromptsResources(
        recorded_prompts=(b"1",), recorded_resources=(b"2",)
    )
    assert not prompts_resources.lists_other([b"1"], [b"2"], [])
    assert prompts_resources.lists_other([b"1"], [b"2"], [b"3"])
    assert prompts_resources.lists_other([], [b"2"], [])


@pytest.mark.parametrize(
    ("uri", "read"),
    [
        ("file:///open/../secret/x", "file:///secret/x"),
        ("file:///open/%2e%2e/secret/x", "file:///secret/x"),
        ("FILE:////secret//x", "file:///secret/x"),
        ("file:///open\\..\\secret", "file:///secret"),
        ("x://host/../../b?q=/../", "x://host/b?q=/../"),
        ("x://host/a/./b/", "x://host/a/b/"),
        ("x:a/../b", "x:b"),
        ("x:/a/..", "x:/"),
        ("x://Host/A", "x://Host/A"),
        ("https://Host:443/A", "https://host/A"),
        ("file:/a", "file:///a"),
        ("file://LOCALHOST/a", "file:///a"),
        ("file:///a?b#c", "file:///a"),
        ("nothing", "nothing"),
        ("note://a", "note://a"),
        ("file:///", "file:///"),
    ],
)
def test_a_uri_is_read_as_servers_do(uri: str, read: str) -> None:
    assert as_read(uri) == read
    assert as_read(read) == read


@pytest.mark.parametrize(
    "uri",
    [
        "file:///open/../secret/x",
        "file:///open/%2e%2e/secret/x",
        "file:///%73ecret/x",
        "FILE:///secret/x",
        "file:////secret/x",
        "file:///./secret/x",
        "file://host/../../secret/x",
        "file:/secret/x",
        "file:/open/..//secret/x",
        "file://localhost/secret/x",
        "FILE://LocalHost/open/../secret/x",
        "file:///secret/x?a",
        " file:///secret/x",
        "%20file:///secret/x",
    ],
)
def test_no_other_spelling_gets_past_a_filter(uri: str) -> None:
    assert not UriFilter((), ["file:///secret/*"]).allows(uri)
    assert not UriFilter(["file:///open/*"], ()).allows(uri)


def test_what_comes_after_a_files_path_is_no_other_file() -> None:
    for uri in ("file:///one.txt?a", "file:///one.txt#a", "file:///one.txt?#", "file:/one.txt"):
        assert not UriFilter((), ["file:///one.txt"]).allows(uri)
    assert UriFilter((), ["note://one#a"]).allows("note://one")
    assert UriFilter((), ["note://one"]).allows("note://one?id=2")


def test_spaces_around_a_uri_do_not_get_it_past_a_filter() -> None:
    assert not UriFilter((), ["note://one"]).allows("note://one ")
    assert not UriFilter((), ["note://one"]).allows(" note://one")
    assert UriFilter((), ["note://one"]).allows("note://one two")


def test_no_spelling_of_a_host_gets_past_a_filter() -> None:
    assert not UriFilter((), ["https://intranet/*"]).allows("https://INTRANET/x")
    assert not UriFilter((), ["https://Intranet/*"]).allows("https://intranet/x")
    assert UriFilter(["https://Host/*"], ()).allows("https://host/x")
    assert not UriFilter((), ["https://host/*"]).allows("https://me@Host.:443/x")
    assert UriFilter((), ["https://host/*"]).allows("https://host:8443/x")
    assert UriFilter((), ["note://one"]).allows("note://One")


def test_a_host_of_a_servers_own_scheme_may_be_left() -> None:
    assert not UriFilter((), ["note://secret/*"]).allows("note://open/../secret/x")
    assert not UriFilter(["note://open/*"], ()).allows("note://open/../secret/x")


def test_a_pattern_in_an_unusual_spelling_matches_itself() -> None:
    assert UriFilter(["proxy://https://host/*"], ()).allows("proxy://https://host/a")
    assert UriFilter(["x://a%20b/*"], ()).allows("x://a%20b/c")
    assert not UriFilter((), ["x://a%20b/*"]).allows("x://a%20b/c")
    assert UriFilter((), ()).allows("file:///etc/../etc/passwd")


def test_what_lists_lack_is_bounded_by_number_and_bytes() -> None:
    def absent(*uris: str) -> int:
        recorded = tuple(json.dumps({"uri": uri}).encode() for uri in uris)
        compiled = CompiledPromptsResources(recorded_resources=(*recorded, b"{}"))
        return len(compiled.absent((), (b"[]", b"{"), ()).resources)

    assert absent(*(f"x://{number}" for number in range(bounds.MAX_ABSENT + 1))) == 1000
    long = "x" * (bounds.MAX_ABSENT_BYTES // 4 - len('"x://1"'))
    assert absent(*(f"x://{number}{long}" for number in range(5))) == 4


def test_a_definition_with_another_text_is_no_absent_one() -> None:
    compiled = CompiledPromptsResources({"greet": "g"}, (b'{"name":"greet","title":"a"}',))
    assert not compiled.absent((b'{"name":"greet"}',), (), ()).prompts
    assert compiled.absent((), (), ()).prompts == ("greet",)


def test_rules_may_name_each_request_that_they_judge() -> None:
    assert {*expressions.METHODS} == {TOOLS_CALL, *METHODS} - {ROOTS_CHANGED}
