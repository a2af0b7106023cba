"""Images and sounds as links: what of a result is changed, and what stays as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.front.calling.media import link_media, linked_artifact, media_wish
from leaseway.front.messages import RpcError
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


def test_an_image_that_is_kept_becomes_a_link_with_its_annotations() -> None:
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
    assert linked_artifact(linked["content"][0]["uri"]) == REF


def test_a_prompts_message_is_linked_whether_its_content_is_one_item_or_several() -> None:
    messages = [{"role": "user", "content": KEPT}, {"role": "user", "content": [KEPT]}]
    linked = json.loads(link_media(json.dumps({"messages": messages}).encode()))
    one, several = (each["content"] for each in linked["messages"])
    assert (one["type"], several[0]["type"]) == ("resource_link", "resource_link")


@given(st.lists(ITEMS))
def test_what_is_no_kept_image_keeps_its_bytes(items: list[bytes]) -> None:
    payload = b'{"content":[%b],"structuredContent":{"artifact":1.50}}' % b",".join(items)
    assert link_media(payload) == payload


@given(st.binary())
def test_what_cannot_be_read_stays(noise: bytes) -> None:
    payload = noise + b'"artifact"'
    assert link_media(payload) == payload


@pytest.mark.parametrize(
    "uri",
    ["leaseway://", "leaseway://artifacts/mcp/x", REF, f"https://{REF}", f"leaseway://{REF}/x"],
)
def test_other_uris_are_left_to_servers(uri: str) -> None:
    assert linked_artifact(uri) is None


@pytest.mark.parametrize("said", ["", "Links", "references", 1, ["links"]])
def test_a_wish_that_there_is_not_is_refused(said: object) -> None:
    with pytest.raises(RpcError, match="`inline` or `links`"):
        media_wish(said)
