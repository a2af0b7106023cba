"""Images and sounds in results, and the conversion of results for models."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypedDict, overload

from leaseway.sdk.errors import ArtifactLost
from leaseway.wire.messages.artifact_refs import media_type
from leaseway.wire.text.base64_text import decoded

MODEL_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""Image types that models accept."""

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
        mime_type: The server's MIME type in lower case without parameters; empty if invalid.
        byte_length: Length in bytes.
        artifact: The reference of the artifact, or None if the result holds the bytes.
        data: The bytes, or None if they are an artifact.
    """

    kind: str
    mime_type: str
    byte_length: int
    artifact: str | None
    data: bytes | None


class MediaReader(Protocol):
    """Reads artifacts for results; implemented by the client that made the calls.

    Attributes:
        wait: Waits for a coroutine in the calling thread, for a client that is used outside its
            loop's thread; else None.
    """

    wait: Callable[[Callable[[], Coroutine[Any, Any, Any]]], object] | None

    def load(self, session: str, ref: str) -> Coroutine[Any, Any, bytes]:
        """Read the artifact of a call in a session."""


def text_of(item: dict[str, Any]) -> str:
    """Return the text of a text item; another value than text as JSON, and null as empty."""
    text = item.get("text", "")
    if isinstance(text, str):
        return text
    return json.dumps(text, ensure_ascii=False) if text is not None else ""


def media_in(items: Iterable[object]) -> list[Media]:
    """Return the images and sounds among content items, without those whose data is invalid."""
    media = [_media(item) for item in items if isinstance(item, dict)]
    return [item for item in media if item is not None]


def blobs_in(parts: Iterable[dict[str, Any]]) -> list[Media]:
    """Return the images and sounds among the parts of a resource, without invalid ones."""
    found: list[Media] = []
    for part in parts:
        mime_type, content = _decode_blob(part)
        kind = mime_type.partition("/")[0]
        if kind in _KINDS and content is not None:
            found.append(
                Media(
                    kind=kind,
                    mime_type=mime_type,
                    byte_length=len(content),
                    artifact=None,
                    data=content,
                )
            )
    return found


def _media(item: dict[str, Any]) -> Media | None:
    """Return the media of a content item; None for other items, or if its data is not base64."""
    kind = item.get("type")
    if kind not in ("image", "audio"):
        return None
    declared = item.get("mimeType")
    mime_type = media_type(declared) if isinstance(declared, str) else ""
    ref, length, data = item.get("artifact"), item.get("byteLength"), item.get("data")
    if isinstance(ref, str) and type(length) is int:
        return Media(kind=kind, mime_type=mime_type, byte_length=length, artifact=ref, data=None)
    if not isinstance(data, str):
        return None
    header, encoded = _split_header(data)
    content = _decode(encoded)
    if content is None:
        return None
    return Media(
        kind=kind,
        mime_type=mime_type or media_type(header),
        byte_length=len(content),
        artifact=None,
        data=content,
    )


def _split_header(data: str) -> tuple[str, str]:
    """Return the MIME type and the base64 of a `data:` URL; an empty type for plain base64."""
    header, comma, rest = data.partition(",")
    if comma and header[:5].lower() == "data:" and header.lower().endswith(";base64"):
        return header[5:], rest
    return "", data


def _decode(text: str) -> bytes | None:
    try:
        return decoded(text)
    except ValueError:
        return None


class ModelContent(Sequence[ModelItem]):
    """The content of a result for a model: texts and images, in order.

    With an `AsyncClient`, `items = await result.for_model()` reads the images. With a `Client`, and
    if no image has to be read, the items are available at once.
    """

    def __init__(
        self, items: list[ModelItem | Media], reader: MediaReader | None, session: str
    ) -> None:
        self._items = items
        self._reader = reader
        self._session = session
        if reader is not None and reader.wait is not None and self._has_unread:
            reader.wait(self._load)

    @property
    def _has_unread(self) -> bool:
        return any(isinstance(item, Media) for item in self._items)

    def __await__(self) -> Generator[Any, None, list[ModelItem]]:
        return self._load().__await__()

    async def _load(self) -> list[ModelItem]:
        for index, item in enumerate(self._items):
            if isinstance(item, Media):
                self._items[index] = await self._read(item)
        return self._loaded()

    async def _read(self, media: Media) -> ModelItem:
        assert media.artifact is not None
        if self._reader is None:
            return _describe(media, "which was kept for the client that called")
        try:
            content = await self._reader.load(self._session, media.artifact)
        except ArtifactLost:
            return _describe(media, "which is no longer kept")
        encoded = await asyncio.to_thread(base64.b64encode, content)
        return ImageItem(type="image", mime_type=media.mime_type, data=encoded.decode())

    def _loaded(self) -> list[ModelItem]:
        loaded: list[ModelItem] = []
        for item in self._items:
            if isinstance(item, Media):
                raise RuntimeError(
                    "The images of this result are not read yet: await result.for_model()."
                )
            loaded.append(item)
        return loaded

    @overload
    def __getitem__(self, index: int) -> ModelItem: ...
    @overload
    def __getitem__(self, index: slice) -> list[ModelItem]: ...
    def __getitem__(self, index: int | slice) -> ModelItem | list[ModelItem]:
        return self._loaded()[index]

    def __iter__(self) -> Iterator[ModelItem]:
        return iter(self._loaded())

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._loaded() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return ModelContent, (self._loaded(), None, self._session)  # without the client

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} items>"


def model_content(result: dict[str, Any]) -> list[ModelItem | Media]:
    """Convert an MCP result for a model; images that are artifacts stay `Media`."""
    content = result.get("content")
    items = model_items(content if isinstance(content, list) else [])
    if not items and result.get("structuredContent") is not None:
        return [_text(json.dumps(result["structuredContent"], ensure_ascii=False))]
    return items


def model_items(items: Iterable[object]) -> list[ModelItem | Media]:
    """Convert content items for a model; images that are artifacts stay `Media`."""
    return [_model_item(item) for item in items if isinstance(item, dict)]


def resource_items(parts: Iterable[dict[str, Any]]) -> list[ModelItem | Media]:
    """Convert the parts of a resource for a model; none of them is an artifact."""
    return [_resource_item(part) for part in parts]


def _model_item(item: dict[str, Any]) -> ModelItem | Media:
    kind = item.get("type")
    if kind == "text":
        return _text(text_of(item))
    if kind in ("image", "audio"):
        return _media_item(_media(item), kind)
    if kind == "resource_link":
        name, uri, about = item.get("name"), item.get("uri"), item.get("description")
        return _text(f"A resource, {name}: {uri}" + (f" ({about})" if about else ""))
    resource = item.get("resource")
    if kind == "resource" and isinstance(resource, dict):
        return _resource_item(resource)
    return _text(f"Content of a kind that cannot be shown here: {kind!r:.80}.")


def _media_item(media: Media | None, kind: str) -> ModelItem | Media:
    if media is None:
        return _text(f"{_KINDS[kind]} that cannot be read.")
    if media.kind == "audio" or media.mime_type not in MODEL_IMAGES:
        return _describe(media, "which cannot be shown here")
    if media.data is None:
        return media
    return _image(media.mime_type, media.data)


def _resource_item(resource: dict[str, Any]) -> ModelItem:
    text = resource.get("text")
    if isinstance(text, str):
        return _text(text)
    mime_type, content = _decode_blob(resource)
    if content is not None and mime_type in MODEL_IMAGES:
        return _image(mime_type, content)
    size = f", {len(content)} bytes" if content is not None else ""
    return _text(
        f"A resource ({mime_type or 'of unknown type'}{size}), which cannot be shown here: "
        f"{resource.get('uri')}"
    )


def _decode_blob(resource: dict[str, Any]) -> tuple[str, bytes | None]:
    """Return the MIME type and the bytes of a resource; None if its blob is missing or invalid."""
    declared, blob = resource.get("mimeType"), resource.get("blob")
    mime_type = media_type(declared) if isinstance(declared, str) else ""
    return mime_type, _decode(blob) if isinstance(blob, str) else None


def _describe(media: Media, why: str) -> TextItem:
    reference = f": {media.artifact}" if media.artifact is not None else ""
    kind = media.mime_type or "of unknown type"
    return _text(f"{_KINDS[media.kind]} ({kind}, {media.byte_length} bytes), {why}{reference}")


def _text(text: str) -> TextItem:
    return TextItem(type="text", text=text)


def _image(mime_type: str, content: bytes) -> ImageItem:
    data = base64.b64encode(content).decode()
    return ImageItem(type="image", mime_type=mime_type, data=data)
