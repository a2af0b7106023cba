"""Results of calls become MCP's, and lose nothing."""

from __future__ import annotations

import json
from typing import Any

import mcp_types
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.core.definitions.results import (
    corrected,
    corrected_params,
    with_content,
    with_contents,
    with_messages,
)
from leaseway.data_plane.mcp.protocol.features.listing import RESOURCES, ListedItems
from leaseway.data_plane.mcp.protocol.messages.results import read_result
from leaseway.wire.bounds import MAX_VALUES

TEXT = {"type": "text", "text": "x"}
PNG = "iVBORw0KGgo="
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 7, 1.5, "", "x", [], ["x"], {}, {"a": None}, "2025-01-01T00:00:00Z", ["user"]]
)
ANNOTATIONS = st.fixed_dictionaries(
    {}, optional={"audience": ODD, "priority": ODD, "lastModified": ODD}
)
CONTENTS = st.fixed_dictionaries(
    {"uri": st.just("a:b")}, optional={"text": ODD, "blob": ODD, "mimeType": ODD, "_meta": ODD}
)
ITEM = ODD | st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["text", "image", "audio", "resource", "resource_link", None, 7]),
        **dict.fromkeys(("text", "data", "mimeType", "uri", "name", "title", "size"), ODD),
        "icons": ODD | st.just([{"src": "x"}, {"src": None}]),
        "resource": ODD | CONTENTS,
        "annotations": ODD | ANNOTATIONS,
        "_meta": ODD,
    },
)
FLAG = st.sampled_from([None, True, False, "true", "False"])


@given(
    st.fixed_dictionaries(
        {"content": ODD | ITEM | st.lists(ITEM, max_size=3)},
        optional={
            "isError": FLAG,
            "resultType": st.sampled_from([None, "complete"]),
            "_meta": ODD,
        },
    )
)
def test_whatever_a_tool_returns_official_clients_read(result: dict[str, Any]) -> None:
    payload, flags, changes = read_result(json.dumps(result).encode())
    read = mcp_types.CallToolResult.model_validate_json(payload, by_name=False)
    assert bool(read.is_error) is flags.isError
    assert corrected(payload) == (payload, "")
    if not changes:
        assert json.loads(payload) == result


@given(st.lists(CONTENTS, max_size=3))
def test_contents_of_resources_likewise(contents: list[dict[str, Any]]) -> None:
    payload, _, _ = read_result(json.dumps({"contents": contents}).encode())
    mcp_types.ReadResourceResult.model_validate_json(payload, by_name=False)


MESSAGE = ODD | st.fixed_dictionaries(
    {},
    optional={
        "role": ODD | st.sampled_from(["user", "assistant", "system"]),
        "content": ITEM | st.lists(ITEM, max_size=2),
        "text": ODD,
    },
)


@given(ODD | st.lists(MESSAGE, max_size=2), ODD)
def test_messages_of_prompts_likewise(messages: Any, description: Any) -> None:
    result = {"messages": messages, "description": description}
    payload, _, _ = read_result(json.dumps(result).encode())
    mcp_types.GetPromptResult.model_validate_json(payload, by_name=False)


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ([{"role": "system", "content": TEXT}], [{"role": "user", "content": TEXT}]),
        ([{"role": "Model", "content": "x"}], [{"role": "assistant", "content": TEXT}]),
        (["x", {"text": "x"}],
         [{"role": "user", "content": TEXT},
          {"text": "x", "role": "user", "content": TEXT}]),
        ([{"role": "user", "content": [TEXT, "x"], "own": 1}],
         [{"role": "user", "content": TEXT, "own": 1}, {"role": "user", "content": TEXT}]),
    ],
)  # fmt: skip
def test_messages_have_a_role_and_one_content_each(given: Any, messages: Any) -> None:
    payload, _, changes = read_result(json.dumps({"messages": given}).encode())
    assert json.loads(payload) == {"messages": messages}
    assert changes


@pytest.mark.parametrize(
    ("given", "content"),
    [
        (None, []),
        ("hi", [TEXT | {"text": "hi"}]),
        (TEXT, [TEXT]),
        ([TEXT | {"annotations": None, "_meta": None}], [TEXT]),
        ([TEXT | {"annotations": {"priority": None, "audience": ["user"]}}],
         [TEXT | {"annotations": {"audience": ["user"]}}]),
        ([{"type": "text", "text": {"a": 1}}], [TEXT | {"text": '{"a": 1}'}]),
        ([{"text": "x"}, 7], [TEXT, TEXT | {"text": "7"}]),
        ([{"type": "image", "data": PNG}],
         [{"type": "image", "data": PNG, "mimeType": "image/png"}]),
        ([{"type": "image", "data": None}],
         [TEXT | {"text": '{"type": "image", "data": null}'}]),
        ([{"type": "resource_link", "uri": "a:b", "size": None}],
         [{"type": "resource_link", "uri": "a:b", "name": "a:b"}]),
        ([{"type": "resource", "resource": {"uri": "a:b", "text": None, "blob": "eA=="}}],
         [{"type": "resource", "resource": {"uri": "a:b", "blob": "eA=="}}]),
        ([{"type": "resource", "resource": {"uri": "/a b.json", "text": "x"}}],
         [{"type": "resource", "resource": {"uri": "resource:/a%20b.json", "text": "x"}}]),
        ([{"type": "resource", "resource": {"uri": None, "text": "x"}}],
         [{"type": "resource", "resource": {"uri": "resource:", "text": "x"}}]),
        ([{"type": "resource", "uri": "a:b", "text": "x"}],
         [{"type": "resource", "resource": {"uri": "a:b", "text": "x"}}]),
        ([{"type": "resource-link", "uri": "a:b", "name": "b"}],
         [{"type": "resource_link", "uri": "a:b", "name": "b"}]),
        ([{"type": "markdown", "text": "x"}], [TEXT]),
        ([{"type": "text", "value": "x"}],
         [TEXT | {"text": '{"type": "text", "value": "x"}'}]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_changed_and_nothing_else(given: Any, content: Any) -> None:
    result = {"content": given, "own": {"number": 1.50}}
    payload, changes = corrected(json.dumps(result).encode())
    assert json.loads(payload) == {**result, "content": content}
    assert changes


@pytest.mark.parametrize(
    ("data", "standard"),
    [
        (f"data:image/png;base64,{PNG}", PNG),
        ("_-8_-w", "/+8/+w=="),
        (f"b'{PNG}'", PNG),
    ],
)
@pytest.mark.parametrize("size", [0, 5_000])
def test_media_are_base64_as_clients_in_javascript_read_it(
    data: str, standard: str, size: int
) -> None:
    item = {"type": "image", "data": data, "mimeType": "image/png"}
    resource = {"uri": "a:b", "blob": data, "mimeType": "image/png"}
    content = [item, {"type": "resource", "resource": resource}, {**TEXT, "text": "x" * 2 * size}]
    payload, _, _ = read_result(json.dumps({"content": content}).encode())
    image, embedded, _ = json.loads(payload)["content"]
    assert image == {**item, "data": standard}
    assert embedded["resource"] == {**resource, "blob": standard}


@pytest.mark.parametrize("data", ["/tmp/shot.png", "no base64!", "89504e470"])
def test_what_is_no_base64_is_a_text(data: str) -> None:
    item = {"type": "image", "data": data, "mimeType": "image/png"}
    payload, _, _ = read_result(json.dumps({"content": [item]}).encode())
    (text,) = json.loads(payload)["content"]
    assert json.loads(text["text"]) == item
    contents = [{"uri": "a:b", "blob": data}]
    payload, _, _ = read_result(json.dumps({"contents": contents}).encode())
    assert json.loads(payload) == {"contents": [{"uri": "a:b", "text": data}]}


@pytest.mark.parametrize(
    ("contents", "text"), [("x", "x"), ([{"text": {"a": 1}}], '{"a": 1}'), ([{"a": 1}], '{"a":1}')]
)
def test_what_is_said_of_a_resource_is_its_text(contents: Any, text: str) -> None:
    payload, _, _ = read_result(json.dumps({"contents": contents}).encode())
    assert json.loads(payload)["contents"][0]["text"] == text


def test_a_progress_token_that_is_none_is_dropped() -> None:
    result = {"content": [TEXT], "_meta": {"progressToken": None, "a": 1}}
    payload, _, changes = read_result(json.dumps(result).encode())
    assert json.loads(payload)["_meta"] == {"a": 1}
    assert changes == "_meta.progressToken is null"


def test_an_mcp_client_gets_types_that_mcp_does_not_name_as_texts() -> None:
    item = {"type": "hologram", "depth": 3}
    result = {"content": [TEXT, item]}
    payload, _, changes = read_result(json.dumps(result).encode(), for_client=True)
    text, shown = json.loads(payload)["content"]
    assert (text, json.loads(shown["text"])) == (TEXT, item)
    assert changes
    messages = {"messages": [{"role": "user", "content": item}]}
    payload, _, _ = read_result(json.dumps(messages).encode(), for_client=True)
    mcp_types.GetPromptResult.model_validate_json(payload, by_name=False)


@pytest.mark.parametrize(
    "content", [[{"type": "hologram", "data": None}], [TEXT], [TEXT, {**TEXT, "own": None}]]
)
def test_members_and_types_that_mcp_does_not_name_stay(content: Any) -> None:
    payload = json.dumps({"content": content}).encode()
    assert corrected(payload) == (payload, "")


@pytest.mark.parametrize(
    ("flag", "is_error"),
    [
        ("", False),
        (',"isError":null', False),
        (',"isError":"True"', True),
        (',"isError":1', True),
        (',"isError":0', False),
    ],
)
def test_an_error_is_what_the_server_calls_one(flag: str, is_error: bool) -> None:
    text = '"isError":true inside a string'
    result = json.dumps({"content": [{"type": "text", "text": text}]})[:-1] + flag + "}"
    assert read_result(result.encode())[1].isError is is_error


@pytest.mark.parametrize("text", ["x", "x" * 10_000])
def test_a_result_whose_type_is_null_has_none(text: str) -> None:
    result = {"content": [{**TEXT, "text": text}]}
    payload, flags, changes = read_result(json.dumps({**result, "resultType": None}).encode())
    assert json.loads(payload) == result
    assert flags.resultType is None
    assert changes == "resultType is null"


@pytest.mark.parametrize(
    "result", [b"[]", b"1", b"null", b'{"isError":"yes"}', b'{"isError":2}', b'{"isError":{}}']
)
def test_what_is_no_result_is_refused(result: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_result(result)


@pytest.mark.parametrize("name", ["content", "messages"])
@pytest.mark.parametrize("for_client", [False, True])
def test_a_list_without_end_stays_as_it_is(name: str, for_client: bool) -> None:
    payload = json.dumps({name: [{"own": 7}] * 1_001}).encode()
    assert corrected(payload, for_client=for_client) == (payload, "")


def test_the_contents_of_the_only_message_are_parted_without_copies_of_what_is_long() -> None:
    message = {"role": "bot", "own": "x" * 1_000, "content": [TEXT] * 3}
    payload, changes = corrected(json.dumps({"messages": message}).encode(), for_client=True)
    first, *others = json.loads(payload)["messages"]
    assert first == {"role": "assistant", "own": "x" * 1_000, "content": TEXT}
    assert others == [{"role": "assistant", "content": TEXT}] * 2
    assert "messages is no list" in changes


def test_what_a_server_asks_has_no_nulls() -> None:
    message = {"role": "user", "content": {**TEXT, "annotations": None}}
    asked = {"messages": [message], "maxTokens": 9, "temperature": None, "_meta": None}
    schema = {"type": "object", "properties": {"a": {"type": "string", "default": "null"}}}
    sampling = corrected_params(json.dumps(asked).encode())
    assert json.loads(sampling) == {"messages": [{"role": "user", "content": TEXT}], "maxTokens": 9}
    elicitation = json.dumps({"message": "m", "requestedSchema": schema}).encode()
    assert corrected_params(elicitation) is elicitation


@pytest.mark.parametrize(
    ("result", "texts"),
    [
        ({}, []),
        ({"isError": True, "structuredContent": None, "_meta": {"a": 1}}, []),
        ({"structuredContent": {"a": 1}}, ['{"a": 1}']),
        ({"toolResult": 7}, ['{"toolResult":7}']),
        ({"structuredContent": "x" * 2**20}, []),
    ],
)
def test_a_result_without_content_says_as_a_text_what_it_says(
    result: dict[str, Any], texts: list[str]
) -> None:
    payload = json.loads(with_content(json.dumps(result).encode()))
    assert payload == {"content": [{"type": "text", "text": text} for text in texts], **result}


def test_prompts_and_resources_without_their_list_say_what_they_say() -> None:
    result = json.loads(with_messages(b'{"description":"d","prompt":"x"}'))
    assert result["messages"] == [
        {"role": "user", "content": {"type": "text", "text": '{"prompt":"x"}'}}
    ]
    assert json.loads(with_messages(b'{"description":"d"}'))["messages"] == []
    assert json.loads(with_contents(b'{"uri":"a:b","text":"x"}')) == {
        "contents": [{"uri": "a:b", "text": "x"}]
    }
    assert json.loads(with_contents(b'{"a":1}'))["contents"] == [
        {"uri": "resource:", "text": '{"a":1}'}
    ]
    assert json.loads(with_contents(b'{"ttlMs":1}'))["contents"] == []


@pytest.mark.parametrize("item", [b"0", b'{"type":"text","text":"","annotations":null}'])
def test_a_list_of_very_many_values_is_not_taken_apart(item: bytes) -> None:
    result = b'{"content":[%b],"isError":false}' % b",".join([item] * (MAX_VALUES + 1))
    assert corrected(result) == (result, "")
    payload, flags, _ = read_result(result)
    assert payload is result
    assert isinstance(flags.content, msgspec.Raw)


@pytest.mark.parametrize("uri", ["/a.md", "docs/a.md", "", "docs://my doc/a", "repo://app:latest"])
@pytest.mark.parametrize("size", [0, 5_000])
def test_an_mcp_client_gets_a_link_without_a_uri_as_a_text(uri: str, size: int) -> None:
    link = {"type": "resource_link", "uri": uri, "name": "a"}
    good = {**link, "uri": "docs://a/b?c"}
    result = json.dumps({"content": [good, link, {**TEXT, "text": "x" * 2 * size}]}).encode()
    payload, _, changes = read_result(result, for_client=True)
    kept, shown, _ = json.loads(payload)["content"]
    assert (kept, json.loads(shown["text"])) == (good, link)
    assert changes
    assert read_result(result)[0] == result, "a service can read it by that name"


@pytest.mark.parametrize(
    "uri",
    [
        "a:b", "ui://", "file:///a b", "file://C:/a", "http://[1::2]:80/", "http://u:p@h?x",
        "mailto:x", "x://{a}/{b}", "x://ü#c", "http:a", "/a", "", "http://", "https://?a", "://a",
        "x://a b/", "http://<h>/", "http://h:PORT/", "x://[a/", "x://u@/", "x://:/", "1:a",
    ],
)  # fmt: skip
def test_a_uri_is_one_if_lists_admit_resources_of_it(uri: str) -> None:
    resources = ListedItems(RESOURCES, modern=True)
    resources.add(json.dumps({"uri": uri, "name": "a"}).encode())
    result = json.dumps({"contents": [{"uri": uri, "text": "x"}]}).encode()
    assert (uri in resources.definitions) == (read_result(result)[0] == result)
