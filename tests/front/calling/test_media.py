"""Images and audio as links: only stored media in a result is replaced."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.front.calling.media import artifact_ref, link_media, parse_media_mode
from leaseway.front.protocol.messages import JsonRpcError
from leaseway.wire.messages.artifact_refs import artifact_reference

REF = artifact_reference(
    "shop", "shot", "image/png", mark="0" * 12, stored_at=1_700_000_000, noise=1
)
KEPT: dict[str, Any] = {
    "type": "image",
    "mimeType": "image/png",
    "byteLength": 70,
    "artifact": REF,
    "annotations": {"audience": ["user"]},
}
ITEMS = st.sampled_from(
    [
        b'{"type":"text","text":"no \\"artifact\\" here"}',
        b'{ "type": "image", "data": "aGk=", "mimeType": "image/png", "n": 1.50 }',
        b'{"type":"image","artifact":"somewhere else","mimeType":"image/png"}',
        b'{"type":"resource","artifact":"%b"}' % REF.encode(),
        b'{"artifact":7}',
    ]
)


def test_a_stored_image_becomes_a_link_with_its_annotations() -> None:
    linked = json.loads(link_media(json.dumps({"content": [KEPT]}).encode()))
    assert linked == {
        "content": [
            {
                "type": "resource_link",
                "uri": f"leaseway://{REF}",
                "name": REF.rpartition("/")[2],
                "mimeType": "image/png",
                "size": 70,
                "annotations": {"audience": ["user"]},
            }
        ]
    }
    assert artifact_ref(linked["content"][0]["uri"]) == REF


def test_prompt_messages_with_one_or_several_content_items_are_linked() -> None:
    messages = [{"role": "user", "content": KEPT}, {"role": "user", "content": [KEPT]}]
    linked = json.loads(link_media(json.dumps({"messages": messages}).encode()))
    one, several = (message["content"] for message in linked["messages"])
    assert (one["type"], several[0]["type"]) == ("resource_link", "resource_link")


@given(st.lists(ITEMS))
def test_content_without_stored_media_keeps_its_bytes(items: list[bytes]) -> None:
    payload = b'{"content":[%b],"structuredContent":{"artifact":1.50}}' % b",".join(items)
    assert link_media(payload) == payload


@given(st.binary())
def test_an_invalid_result_is_unchanged(noise: bytes) -> None:
    payload = noise + b'"artifact"'
    assert link_media(payload) == payload


@pytest.mark.parametrize(
    "uri",
    ["leaseway://", "leaseway://artifacts/mcp/x", REF, f"https://{REF}", f"leaseway://{REF}/x"],
)
def test_other_uris_are_no_artifacts(uri: str) -> None:
    assert artifact_ref(uri) is None


@pytest.mark.parametrize("value", ["", "Links", "references", 1, ["links"]])
def test_an_unknown_media_mode_is_rejected(value: object) -> None:
    with pytest.raises(JsonRpcError, match="`inline` or `links`"):
        parse_media_mode(value)
