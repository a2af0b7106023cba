"""The media of results, and their conversion for models."""

from __future__ import annotations

import base64
import json
import pickle
from typing import Any

import pytest

from leaseway.sdk.calls.prompt_results import PromptResult, ResourceResult
from leaseway.sdk.calls.results import ToolResult

PNG = b"\x89PNG\r\n"
DATA = base64.b64encode(PNG).decode()
REF = "artifacts/mcp/a/b/20260528T202640250Z-aaaaaaaa-aaaa-8aaa-8aaa-aaaaaaaaaaaa.png"


def result(*content: object, **members: object) -> ToolResult:
    return ToolResult(json.dumps({"content": content, **members}).encode())


def shown(*content: object, **members: object) -> list[Any]:
    return list(result(*content, **members).for_model())


def image(mime: object = "image/png", **members: object) -> dict[str, object]:
    return {"type": "image", "mimeType": mime, "data": DATA, **members}


@pytest.mark.parametrize("mime", ["image/png", "image/gif", "image/webp", "image/jpeg"])
def test_images_that_models_take_are_images(mime: str) -> None:
    assert shown(image(mime)) == [{"type": "image", "mime_type": mime, "data": DATA}]


@pytest.mark.parametrize(
    ("mime", "meant"), [("image/jpg", "image/jpeg"), ("IMAGE/PNG; q=1", "image/png")]
)
def test_their_types_are_written_as_providers_want_them(mime: str, meant: str) -> None:
    assert shown(image(mime))[0]["mime_type"] == meant


def test_a_data_prefix_gives_the_type_and_is_not_passed_on() -> None:
    nameless = {"type": "image", "data": f"data:image/gif;base64,{DATA}"}
    assert shown(nameless) == [{"type": "image", "mime_type": "image/gif", "data": DATA}]


@pytest.mark.parametrize(
    "mime", ["image/svg+xml", "image/tiff", "text/html", "", None, 5, "image/png\r\nx: y"]
)
def test_any_other_type_is_a_note(mime: object) -> None:
    (note,) = shown(image(mime))
    assert note["type"] == "text"
    assert f"{len(PNG)} bytes" in note["text"]
    assert "\r" not in note["text"]


def test_a_sound_is_a_note_with_type_length_and_reference() -> None:
    sound = {"type": "audio", "mimeType": "audio/wav", "byteLength": 7, "artifact": REF}
    assert shown(sound) == [
        {
            "type": "text",
            "text": f"A sound (audio/wav, 7 bytes), which cannot be shown here: {REF}",
        }
    ]


def test_an_artifact_without_its_client_is_a_note_when_awaited() -> None:
    content = result(image(data=None, byteLength=6, artifact=REF)).for_model()
    with pytest.raises(RuntimeError, match="await"):
        content[0]
    with pytest.raises(StopIteration) as done:
        content.__await__().send(None)
    assert REF in done.value.value[0]["text"]


@pytest.mark.parametrize("data", ["%", None, 5, "AAAAA"])
def test_an_image_with_invalid_data_becomes_a_text(data: object) -> None:
    assert shown(image(data=data)) == [{"type": "text", "text": "An image that cannot be read."}]


def test_texts_stay_in_order_and_those_of_resources_too() -> None:
    text = {"type": "text", "text": "a"}
    resource = {"type": "resource", "resource": {"uri": "file:///x", "text": "b"}}
    assert shown(text, resource) == [text, {"type": "text", "text": "b"}]


def test_a_resource_with_bytes_is_an_image_or_a_note() -> None:
    picture = {"uri": "file:///x.png", "mimeType": "image/png", "blob": DATA}
    archive = {"uri": "file:///x.zip", "mimeType": "application/zip", "blob": DATA}
    first, second = shown(
        {"type": "resource", "resource": picture}, {"type": "resource", "resource": archive}
    )
    assert first == {"type": "image", "mime_type": "image/png", "data": DATA}
    assert "application/zip, 6 bytes" in second["text"]
    assert second["text"].endswith("file:///x.zip")


def test_a_link_names_its_resource() -> None:
    link = {"type": "resource_link", "name": "log", "uri": "file:///log", "description": "all"}
    assert shown(link)[0]["text"] == "A resource, log: file:///log (all)"


@pytest.mark.parametrize("item", [{"type": "future"}, {}, {"type": "resource"}, {"type": [1]}])
def test_an_unknown_kind_is_a_note(item: object) -> None:
    assert "cannot be shown here" in shown(item)[0]["text"]


def test_a_result_of_structure_alone_is_its_json() -> None:
    assert shown(structuredContent={"a": "é"}) == [{"type": "text", "text": '{"a": "é"}'}]
    assert shown() == []
    assert shown(5, None) == []


def test_content_without_artifacts_can_be_used_and_awaited() -> None:
    content = result(image()).for_model()
    with pytest.raises(StopIteration) as done:
        content.__await__().send(None)
    assert content == done.value.value == list(content)
    assert content[0:1] == [content[-1]]


def test_media_are_listed_with_bytes_or_reference() -> None:
    kept = {"type": "audio", "mimeType": "audio/wav", "byteLength": 7, "artifact": REF}
    first, second = result({"type": "text", "text": "a"}, image(), image(data="%"), kept).media
    assert (first.kind, first.mime_type, first.byte_length) == ("image", "image/png", len(PNG))
    assert (first.data, first.artifact) == (PNG, None)
    assert (second.kind, second.byte_length) == ("audio", 7)
    assert (second.data, second.artifact) == (None, REF)


def prompt(*contents: object) -> PromptResult:
    messages = [{"role": "user", "content": content} for content in contents]
    return PromptResult(json.dumps({"messages": messages}).encode())


def test_a_prompt_has_the_media_of_its_messages_and_shows_an_item_for_each() -> None:
    text = {"type": "text", "text": "see"}
    got = prompt(text, image(), {"type": "resource", "resource": {"uri": "a:b", "text": "c"}})
    assert [(media.kind, media.data) for media in got.media] == [("image", PNG)]
    assert list(got.for_model()) == [
        text,
        {"type": "image", "mime_type": "image/png", "data": DATA},
        {"type": "text", "text": "c"},
    ]


def test_a_message_with_several_items_hides_none_of_them() -> None:
    got = prompt([{"type": "text", "text": "a"}, image(), 5], {"type": "text", "text": "b"}, "c")
    assert (got.text, len(got.media), len(got.for_model())) == ("a\nb", 1, 3)


def test_an_image_of_a_prompt_is_read_if_it_is_an_artifact() -> None:
    got = prompt(image(data=None, byteLength=6, artifact=REF))
    assert (got.media[0].artifact, got.media[0].data) == (REF, None)
    with pytest.raises(RuntimeError, match="await"):
        got.for_model()[0]


def resource(**members: object) -> ResourceResult:
    return ResourceResult(json.dumps({"contents": [{"uri": "a:b", **members}]}).encode())


def test_a_resource_has_the_media_that_its_types_name() -> None:
    (picture,) = resource(mimeType="IMAGE/PNG", blob=DATA).media
    assert (picture.kind, picture.mime_type, picture.data) == ("image", "image/png", PNG)
    (sound,) = resource(mimeType="audio/wav", blob=DATA).media
    assert (sound.kind, sound.byte_length, sound.artifact) == ("audio", len(PNG), None)


@pytest.mark.parametrize(
    "part",
    [
        {"mimeType": "image/svg+xml", "text": "<svg/>"},
        {"mimeType": "application/zip", "blob": DATA},
        {"mimeType": "image/png", "blob": "%"},
        {"blob": DATA},
    ],
)
def test_the_media_of_a_resource_are_its_images_and_sounds(part: Any) -> None:
    assert resource(**part).media == []


def test_a_resource_shows_its_texts_and_images_and_notes_the_rest() -> None:
    assert list(resource(text="a").for_model()) == [{"type": "text", "text": "a"}]
    assert resource(mimeType="image/png", blob=DATA).for_model()[0]["type"] == "image"
    (note,) = resource(mimeType="application/zip", blob=DATA).for_model()
    assert note == {
        "type": "text",
        "text": "A resource (application/zip, 6 bytes), which cannot be shown here: a:b",
    }


@pytest.mark.parametrize("made", [prompt(image()), resource(text="a"), result(image())])
def test_results_are_pickled_without_their_client(made: Any) -> None:
    made._reader = lambda: None  # which cannot be pickled
    again = pickle.loads(pickle.dumps(made))
    assert (type(again), again.raw, again._reader) == (type(made), made.raw, None)
