from __future__ import annotations

import pytest

from leaseway.sdk import InternalError, ToolResult


def test_the_text_items_are_joined() -> None:
    result = ToolResult(
        b'{"content":[{"type":"text","text":"a"},{"type":"image","data":"x"},'
        b'{"type":"text","text":"b"}]}'
    )
    assert result.text == "a\nb"
    assert [item["type"] for item in result.content] == ["text", "image", "text"]


@pytest.mark.parametrize(
    ("value", "text"), [(b"null", ""), (b"5", "5"), (b'{"a": "\xc3\xbc"}', '{"a": "ü"}')]
)
def test_a_text_item_without_a_text_reads_as_json(value: bytes, text: str) -> None:
    result = ToolResult(b'{"content":[{"type":"text","text":%b}]}' % value)
    assert result.text == text
    assert [*result.for_model()] == [{"type": "text", "text": text}]


def test_unknown_members_are_kept() -> None:
    result = ToolResult(b'{"content":[{"type":"new","x":1}],"_meta":{"a":1},"extra":[2]}')
    assert result.raw["extra"] == [2]
    assert result.raw["_meta"] == {"a": 1}
    assert result.content == [{"type": "new", "x": 1}]
    assert result.text == ""


def test_structured_content_may_be_any_json() -> None:
    assert ToolResult(b'{"structuredContent":{"n":1}}').structured == {"n": 1}
    assert ToolResult(b"{}").structured is None


def test_a_result_is_parsed_when_it_is_read() -> None:
    result = ToolResult(b"this is not json", is_error=True)
    assert result.is_error
    assert result.payload == b"this is not json"
    with pytest.raises(InternalError, match="not JSON"):
        _ = result.text


def test_a_result_that_is_no_object_is_an_error_when_read() -> None:
    with pytest.raises(InternalError, match="not a JSON object"):
        _ = ToolResult(b"[1]").content


def test_a_result_is_parsed_once() -> None:
    result = ToolResult(b'{"content":[]}')
    assert result.raw is result.raw


def test_an_empty_payload_is_an_empty_result() -> None:
    result = ToolResult(b"")
    assert (result.raw, result.content, result.text) == ({}, [], "")
    assert result.reminder is None


@pytest.mark.parametrize("content", [b"null", b'"text"', b"{}"])
def test_content_that_is_no_list_reads_as_empty(content: bytes) -> None:
    assert ToolResult(b'{"content":' + content + b"}").content == []
