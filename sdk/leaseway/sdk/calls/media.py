"""Images and sounds of results, and what of a result a model can be shown."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypedDict, overload

from leaseway.sdk.errors import ArtifactLost
from leaseway.wire.messages.artifact_refs import media_type

MODEL_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""What providers' models take as images."""

_KINDS: Final = {"image": "An image", "audio": "A sound"}


class TextItem(TypedDict):
    """Text for a model."""

    type: Literal["text"]
    text: str


class ImageItem(TypedDict):
    """An image for a model; `data` is base64."""

    type: Literal["image"]
    mime_type: str
    data: str


ModelItem = TextItem | ImageItem


@dataclass(frozen=True)
class Media:
    """An image or a sound of a result.

    Attributes:
        kind: `image` or `audio`.
        mime_type: What the server calls it, in lower case without parameters; empty where that is
            no MIME type.
        byte_length: How many bytes it has.
        artifact: The reference to read them by, or None where they came in place.
        data: The bytes, or None where they are an artifact.
    """

    kind: str
    mime_type: str
    byte_length: int
    artifact: str | None
    data: bytes | None


class MediaReader(Protocol):
    """Reads artifacts for results: the client that made the calls.

    Attributes:
        wait: Waits for a coroutine in the calling thread, where the client is used from other
            threads than its loop's; else None.
    """

    wait: Callable[[Callable[[], Coroutine[Any, Any, Any]]], object] | None

    def load(self, session: str, ref: str) -> Coroutine[Any, Any, bytes]:
        """Read the artifact of a call in a session."""


def media_in(items: Iterable[object]) -> list[Media]:
    """Return the images and sounds among content items; those that cannot be read are left out."""
    found = [_media_of(item) for item in items if isinstance(item, dict)]
    return [media for media in found if media is not None]


def blobs_in(parts: Iterable[dict[str, Any]]) -> list[Media]:
    """Return the images and sounds among the parts of a resource, in the same way."""
    found: list[Media] = []
    for part in parts:
        mime_type, content = _blob_of(part)
        kind = mime_type.partition("/")[0]
        if kind in _KINDS and content is not None:
            found.append(Media(kind, mime_type, len(content), None, content))
    return found


def _media_of(item: dict[str, Any]) -> Media | None:
    """Return the media of a content item; None where it is none, or its data is not base64."""
    kind = item.get("type")
    if kind not in ("image", "audio"):
        return None
    said = item.get("mimeType")
    mime_type = media_type(said) if isinstance(said, str) else ""
    ref, length, data = item.get("artifact"), item.get("byteLength"), item.get("data")
    if isinstance(ref, str) and isinstance(length, int):
        return Media(kind, mime_type, length, ref, None)
    if not isinstance(data, str):
        return None
    header, text = _split_header(data)
    content = _decoded(text)
    if content is None:
        return None
    return Media(kind, mime_type or media_type(header), len(content), None, content)


def _split_header(data: str) -> tuple[str, str]:
    """Return the MIME type of a `data:` URL and its base64; an empty one without such a prefix."""
    header, comma, rest = data.partition(",")
    if comma and header[:5].lower() == "data:" and header.lower().endswith(";base64"):
        return header[5:], rest
    return "", data


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (ValueError, binascii.Error):
        return None


class ModelContent(Sequence[ModelItem]):
    """What a model can be shown of a result: texts and images, in order.

    A result of `AsyncClient` is awaited, which reads its images: `items = await
    result.for_model()`. Of one of `Client`, and where no image has to be read, the items are
    there at once.
    """

    def __init__(
        self, items: list[ModelItem | Media], reader: MediaReader | None, session: str
    ) -> None:
        self._items = items
        self._reader = reader
        self._session = session
        if reader is not None and reader.wait is not None and self._waits:
            reader.wait(self._load)

    @property
    def _waits(self) -> bool:
        return any(isinstance(item, Media) for item in self._items)

    def __await__(self) -> Generator[Any, None, list[ModelItem]]:
        return self._load().__await__()

    async def _load(self) -> list[ModelItem]:
        for index, item in enumerate(self._items):
            if isinstance(item, Media):
                self._items[index] = await self._loaded(item)
        return self._ready()

    async def _loaded(self, media: Media) -> ModelItem:
        assert media.artifact is not None
        if self._reader is None:
            return _note(media, "which was kept for the client that called")
        try:
            content = await self._reader.load(self._session, media.artifact)
        except ArtifactLost:
            return _note(media, "which is no longer kept")
        encoded = await asyncio.to_thread(base64.b64encode, content)
        return ImageItem(type="image", mime_type=media.mime_type, data=encoded.decode())

    def _ready(self) -> list[ModelItem]:
        ready: list[ModelItem] = []
        for item in self._items:
            if isinstance(item, Media):
                raise RuntimeError(
                    "The images of this result are still to be read: await result.for_model()."
                )
            ready.append(item)
        return ready

    @overload
    def __getitem__(self, index: int) -> ModelItem: ...
    @overload
    def __getitem__(self, index: slice) -> list[ModelItem]: ...
    def __getitem__(self, index: int | slice) -> ModelItem | list[ModelItem]:
        return self._ready()[index]

    def __iter__(self) -> Iterator[ModelItem]:
        return iter(self._ready())

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._ready() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} items>"


def model_content(result: dict[str, Any]) -> list[ModelItem | Media]:
    """Return what a model can be shown of an MCP result; images that are to be read as `Media`."""
    content = result.get("content")
    shown = model_items(content if isinstance(content, list) else [])
    if not shown and result.get("structuredContent") is not None:
        text = json.dumps(result["structuredContent"], ensure_ascii=False)
        return [TextItem(type="text", text=text)]
    return shown


def model_items(items: Iterable[object]) -> list[ModelItem | Media]:
    """Return what a model can be shown of content items, in the same way."""
    return [_shown(item) for item in items if isinstance(item, dict)]


def content_of_resources(parts: Iterable[dict[str, Any]]) -> list[ModelItem | Media]:
    """Return what a model can be shown of a resource's parts, none of which is to be read."""
    return [_shown_resource(part) for part in parts]


def _shown(item: dict[str, Any]) -> ModelItem | Media:
    kind = item.get("type")
    if kind == "text":
        return _text(str(item.get("text", "")))
    if kind in ("image", "audio"):
        return _shown_media(_media_of(item), kind)
    if kind == "resource_link":
        return _text(_link(item))
    resource = item.get("resource")
    if kind == "resource" and isinstance(resource, dict):
        return _shown_resource(resource)
    return _text(f"Content of a kind that cannot be shown here: {kind!r:.80}.")


def _shown_media(media: Media | None, kind: str) -> ModelItem | Media:
    if media is None:
        return _text(f"{_KINDS[kind]} that cannot be read.")
    if media.kind == "audio" or media.mime_type not in MODEL_IMAGES:
        return _note(media, "which cannot be shown here")
    if media.data is None:
        return media
    data = base64.b64encode(media.data).decode()
    return ImageItem(type="image", mime_type=media.mime_type, data=data)


def _shown_resource(resource: dict[str, Any]) -> ModelItem:
    text = resource.get("text")
    if isinstance(text, str):
        return _text(text)
    mime_type, content = _blob_of(resource)
    if content is not None and mime_type in MODEL_IMAGES:
        data = base64.b64encode(content).decode()
        return ImageItem(type="image", mime_type=mime_type, data=data)
    size = f", {len(content)} bytes" if content is not None else ""
    return _text(
        f"A resource ({mime_type or 'of unknown type'}{size}), which cannot be shown here: "
        f"{resource.get('uri')}"
    )


def _blob_of(resource: dict[str, Any]) -> tuple[str, bytes | None]:
    """Return the MIME type of a resource's bytes, and those where they can be read."""
    said, blob = resource.get("mimeType"), resource.get("blob")
    mime_type = media_type(said) if isinstance(said, str) else ""
    return mime_type, _decoded(blob) if isinstance(blob, str) else None


def _link(item: dict[str, Any]) -> str:
    name, uri, about = item.get("name"), item.get("uri"), item.get("description")
    return f"A resource, {name}: {uri}" + (f" ({about})" if about else "")


def _note(media: Media, why: str) -> TextItem:
    where = f": {media.artifact}" if media.artifact is not None else ""
    kind = media.mime_type or "of unknown type"
    return _text(f"{_KINDS[media.kind]} ({kind}, {media.byte_length} bytes), {why}{where}")


def _text(text: str) -> TextItem:
    return TextItem(type="text", text=text)
