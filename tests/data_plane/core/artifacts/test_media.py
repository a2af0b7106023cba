"""Media in results are replaced by references; all else is unchanged."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.core.artifacts.media import (
    EncodedMedia,
    InvalidMedia,
    StoredMedia,
    image_from_text,
    may_hold_media,
    replace_media,
)
from leaseway.wire.bounds import MAX_ARTIFACTS_PER_RESULT

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.sampled_from(["type", "data", "content"]), inner)
    ),
    max_leaves=12,
)


class Shelf:
    """Stores media in a list and references them by number."""

    def __init__(self) -> None:
        self.media: list[tuple[str, str, bytes]] = []
        self.refused: list[str] = []
        self.too_many = 0

    def __call__(self, media: EncodedMedia) -> StoredMedia | None:
        try:
            content = b"".join(media.parts())
        except InvalidMedia as error:
            self.refused.append(str(error))
            return None
        self.media.append((media.kind, media.mime_type, content))
        return StoredMedia(f"artifacts/{len(self.media)}", len(content))

    def on_too_many(self) -> None:
        self.too_many += 1


def encoded(content: bytes = PNG) -> str:
    return base64.b64encode(content).decode()


def image(**members: Any) -> dict[str, Any]:
    return {"type": "image", "mimeType": "image/png", "data": encoded(), **members}


def replaced(result: object) -> tuple[Any, Shelf]:
    shelf = Shelf()
    return json.loads(replace_media(msgspec.json.encode(result), shelf)), shelf


def test_an_image_becomes_a_reference_with_type_and_length() -> None:
    result, shelf = replaced({"content": [{"type": "text", "text": "see"}, image()]})
    assert shelf.media == [("image", "image/png", PNG)]
    assert result["content"] == [
        {"type": "text", "text": "see"},
        {
            "type": "image",
            "mimeType": "image/png",
            "byteLength": len(PNG),
            "artifact": "artifacts/1",
        },
    ]


def test_a_sound_becomes_a_reference_too() -> None:
    item = {"type": "audio", "mimeType": "audio/wav", "data": encoded(b"RIFF")}
    result, shelf = replaced({"content": [item]})
    assert shelf.media == [("audio", "audio/wav", b"RIFF")]
    assert result["content"][0]["byteLength"] == 4


def test_media_in_the_messages_of_a_prompt_are_found_alone_and_in_lists() -> None:
    messages = [
        {"role": "user", "content": image()},
        {"role": "user", "content": [image(), {"type": "text", "text": "x"}]},
        {"role": "user", "content": {"type": "text", "text": "y"}},
    ]
    result, shelf = replaced({"messages": messages})
    assert len(shelf.media) == 2
    assert result["messages"][0]["content"]["artifact"] == "artifacts/1"
    assert result["messages"][1]["content"][0]["artifact"] == "artifacts/2"
    assert result["messages"][2] == messages[2]


@pytest.mark.parametrize("header", ["data:image/gif;base64,", "DATA:image/gif;x=y;BASE64,"])
def test_the_type_of_a_data_url_counts_if_the_item_has_none(header: str) -> None:
    nameless = {"type": "image", "data": header + encoded()}
    result, shelf = replaced({"content": [nameless, image(data=header + encoded())]})
    assert [mime for _, mime, _ in shelf.media] == ["image/gif", "image/png"]
    assert [content for _, _, content in shelf.media] == [PNG, PNG]
    assert [item["mimeType"] for item in result["content"]] == ["image/gif", "image/png"]


def test_an_item_without_any_type_is_called_bytes() -> None:
    result, shelf = replaced({"content": [{"type": "image", "data": encoded()}]})
    assert result["content"][0]["mimeType"] == "application/octet-stream"
    assert shelf.media[0][1] == "application/octet-stream"


def test_artifact_members_of_a_server_are_ignored() -> None:
    result, _ = replaced({"content": [image(artifact="artifacts/other", byteLength=1)]})
    assert result["content"][0]["artifact"] == "artifacts/1"
    assert result["content"][0]["byteLength"] == len(PNG)


@pytest.mark.parametrize(
    "data",
    [
        "%%%",
        "AAAAA",
        "AAA=AAAA",
        "=" * 4,
        "data:image/png;base64,no!",
        "data:image/png,AAAA",
        "é" * 4,
    ],
)
def test_invalid_base64_is_not_replaced(data: str) -> None:
    payload = msgspec.json.encode({"content": [image(data=data)]})
    shelf = Shelf()
    assert replace_media(payload, shelf) is payload
    assert len(shelf.refused) == 1


def test_an_invalid_item_does_not_affect_the_others() -> None:
    result, _ = replaced({"content": [image(data="%"), image()]})
    assert result["content"][0] == image(data="%")
    assert result["content"][1]["artifact"] == "artifacts/1"


@pytest.mark.parametrize("gap", ["\n", "\r\n", " ", "\t"])
def test_base64_in_lines_is_read(gap: str) -> None:
    text = gap.join(encoded()[i : i + 76] for i in range(0, len(encoded()), 76))
    _, shelf = replaced({"content": [image(data=text)]})
    assert shelf.media[0][2] == PNG


def test_escapes_in_base64_are_read() -> None:
    payload = (
        b'{"content":[{"type":"image","data":"%b"}]}'
        % encoded(b"\xff" * 30).replace("/", "\\/").encode()
    )
    shelf = Shelf()
    assert b"artifact" in replace_media(payload, shelf)
    assert shelf.media[0][2] == b"\xff" * 30


@pytest.mark.parametrize("size", [0, 1, (1 << 20) // 4 * 3, (1 << 20) + 1, 5_000_000])
def test_media_of_any_size_are_decoded_in_parts(size: int) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    parts = list(image_from_text("image/png", encoded(content)).parts())
    assert b"".join(parts) == content
    assert all(len(part) <= 768 * 1024 for part in parts)


@pytest.mark.parametrize("size", [4, 800_000])
def test_base64_for_urls_and_without_padding_is_decoded_too(size: int) -> None:
    content = bytes(range(255, -1, -1)) * (size // 256) + b"\xfb\xff\xfe\xff"[: size % 256]
    text = base64.urlsafe_b64encode(content).decode().rstrip("=")
    _, shelf = replaced({"content": [image(data=text), image(data=encoded(content).rstrip("="))]})
    assert [stored for _, _, stored in shelf.media] == [content, content]


def test_padding_at_the_seam_of_two_parts_is_refused() -> None:
    text = "A" * ((1 << 20) - 1) + "=" + "AAAA"
    with pytest.raises(InvalidMedia):
        list(image_from_text("", text).parts())


def test_values_keep_the_bytes_that_the_server_sent() -> None:
    odd = b'{"x" : 1.50, "y":"\\u00e9\\/", "big":123456789012345678901234567890}'
    payload = b'{ "_meta": %b, "content": [ %b, %b ], "structuredContent": %b }' % (
        odd,
        b'{"type":"future", "data": "image" , "n": 1e3}',
        msgspec.json.encode(image(annotations={"priority": 1})),
        odd,
    )
    fresh = replace_media(payload, Shelf())
    assert fresh.count(odd) == 2
    assert b'{"type":"future", "data": "image" , "n": 1e3}' in fresh
    assert json.loads(fresh)["content"][1]["annotations"] == {"priority": 1}


def test_the_number_of_artifacts_of_a_result_is_limited() -> None:
    result, shelf = replaced({"content": [image(data="AAAA")] * (MAX_ARTIFACTS_PER_RESULT + 3)})
    assert len(shelf.media) == MAX_ARTIFACTS_PER_RESULT
    assert [item for item in result["content"] if "data" in item] == [image(data="AAAA")] * 3
    assert shelf.too_many == 1
    _, shelf = replaced({"content": [image(data="AAAA")] * MAX_ARTIFACTS_PER_RESULT + [{}]})
    assert shelf.too_many == 0


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b'{"content":"\\"data\\" image"}',
        b'{"content":[{"type":"image","data":5}]}',
        b'{"content":{"type":"image","data":"AAAA"}}',
        b'{"content":[["image","data"]],"messages":[1,{"content":2}]}',
        b'{"content":[{"type":"image","data":"AAAA"',
        b'{"structuredContent":{"type":"image","data":"AAAA"}}',
        b'{"content":[{"type":"resource","resource":{"blob":"AAAA","data":"","k":"image"}}]}',
    ],
)
def test_a_result_without_media_is_the_same_object(payload: bytes) -> None:
    assert replace_media(payload, Shelf()) is payload


@given(JSON)
def test_every_result_without_media_is_the_same_object(value: Any) -> None:
    payload = msgspec.json.encode({"content": value, "messages": [value]})
    shelf = Shelf()
    fresh = replace_media(payload, shelf)
    assert (fresh is payload) == (not shelf.media)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4), JSON, st.binary(max_size=50))
def test_unknown_members_survive_around_and_in_media(
    members: dict[str, Any], other: Any, content: bytes
) -> None:
    extra = {f"x-{name}": value for name, value in members.items()}
    item = {**extra, "type": "image", "mimeType": "image/png", "data": encoded(content)}
    result, shelf = replaced({**extra, "content": [other_item(other), item]})
    assert shelf.media[-1] == ("image", "image/png", content)
    kept = result["content"][1]
    assert kept == {
        **json.loads(json.dumps(extra)),
        "type": "image",
        "mimeType": "image/png",
        "byteLength": len(content),
        "artifact": f"artifacts/{len(shelf.media)}",
    }
    assert result["content"][0] == other_item(json.loads(json.dumps(other)))
    assert {name: result[name] for name in extra} == json.loads(json.dumps(extra))


def other_item(value: Any) -> dict[str, Any]:
    return {"type": "other", "value": value}


def test_the_first_look_is_at_bytes_alone() -> None:
    assert not may_hold_media(b'{"content":[{"type":"text","text":"an \\"image\\""}]}')
    assert not may_hold_media(b'{"structuredContent":{"data":1}}')
    assert may_hold_media(msgspec.json.encode({"content": [image()]}))
