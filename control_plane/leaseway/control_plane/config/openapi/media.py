"""Chooses the media type of a request's body, and how that type is encoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from leaseway.spec.kinds.http_tools import Body, holds_bytes, is_media_type

_JSONS: Final = ("application/json", "application/merge-patch+json", "text/json")
"""Preferred over other JSON types; a merge patch is a plain object."""
_ANY_TYPE: Final = ("*/*", "application/*")
_TEXTS: Final = ("/xml", "+xml", "/yaml", "+yaml", "/graphql", "/javascript")
_LINES: Final = ("jsonl", "ndjson", "jsonlines", "json-lines", "json-seq")
"""Types whose bodies are one JSON value after another."""
_MAX_KINDS: Final = 20
FORM: Final = "application/x-www-form-urlencoded"
FORM_DATA: Final = "multipart/form-data"
_FORMS: Final[Mapping[str, Body]] = {
    FORM_DATA: "multipart",
    FORM: "form",
}


@dataclass(frozen=True)
class BodyType:
    """The chosen media type of a body.

    Attributes:
        kind: As it is written in the document; of bytes that may be of several types, all of them.
        body: How its values are encoded.
        schema: Its schema; may be anything.
        encoding: How each member is written, by its name.
        item_encoding: How each item of a list is written.
        examples: Whole bodies.
    """

    kind: str
    body: Body
    schema: Any = field(default_factory=dict)
    encoding: Mapping[str, Any] = field(default_factory=dict)
    item_encoding: Mapping[str, Any] = field(default_factory=dict)
    examples: tuple[Any, ...] = ()


def choose_body(content: Mapping[str, Any]) -> BodyType:
    """Return the media type to send: JSON if there is a choice, then a form, then text."""
    kinds = {essence(str(kind)): kind for kind in content}
    jsons = (kind for kind in kinds if kind.endswith("+json"))
    for kind in (*_JSONS, *jsons):
        if kind in kinds:
            return _body_type(content, kinds[kind], "json")
    for kind, body in _FORMS.items():
        if kind in kinds:
            return _body_type(content, kinds[kind], body)
    for kind, written in kinds.items():
        if kind.endswith(_LINES):
            return _body_type(content, written, "lines")
        if kind.startswith("text/") or kind.endswith(_TEXTS):
            return _body_type(content, written, "text")
    for kind, written in kinds.items():
        if kind.startswith("multipart/"):
            return _body_type(content, written, "multipart")
    chosen = _body_type(content, next(iter(content)), "binary")
    is_value = isinstance(chosen.schema, Mapping) and not holds_bytes(dict(chosen.schema))
    if essence(chosen.kind) in _ANY_TYPE and is_value:
        return _body_type(content, next(iter(content)), "json")
    if len(kinds) > 1 and not any("*" in kind for kind in kinds):
        return replace(chosen, kind=", ".join(list(kinds)[:_MAX_KINDS]))
    return chosen


def _body_type(content: Mapping[str, Any], kind: Any, body: Body) -> BodyType:
    media = content[kind]
    if not isinstance(media, Mapping):
        return BodyType(str(kind), body)
    encoding, of_items = media.get("encoding"), media.get("itemEncoding")
    schema = media.get("schema", {})
    if "schema" not in media and "itemSchema" in media:
        schema = {"type": "array", "items": media["itemSchema"]}
    return BodyType(
        kind=str(kind),
        body=body,
        schema=schema,
        encoding=encoding if isinstance(encoding, Mapping) else {},
        item_encoding=of_items if isinstance(of_items, Mapping) else {},
        examples=tuple(examples_of(media)),
    )


def examples_of(given: Mapping[str, Any]) -> list[Any]:
    """Return the examples of a parameter or media type, which stand beside its schema."""
    if "example" in given:
        return [given["example"]]
    named = given.get("examples")
    return [
        example["value"]
        for example in (named.values() if isinstance(named, Mapping) else ())
        if isinstance(example, Mapping) and "value" in example
    ]


def has_names(chosen: BodyType) -> bool:
    """Return whether each part of a body has a name, as in a form, or only its place."""
    return chosen.body != "multipart" or essence(chosen.kind) == FORM_DATA


def essence(kind: str) -> str:
    """Return a media type in lower case, without its parameters."""
    return kind.partition(";")[0].strip().lower()


def sent_type(chosen: BodyType) -> str:
    """Return the content type to send; empty if the encoding determines it.

    Parameters stay, except a charset: bodies are UTF-8.
    """
    kind = essence(chosen.kind)
    if chosen.body in ("form", "binary") or "*" in kind or kind == FORM_DATA:
        return ""
    if chosen.body == "multipart":
        return kind if is_media_type(kind) else ""
    kept = [part.strip() for part in chosen.kind.split(";")[1:]]
    kept = [part for part in kept if part and not part.lower().startswith("charset")]
    if chosen.body == "text":
        kept.append("charset=utf-8")
    full = "; ".join([kind, *kept])
    full = full if is_media_type(full) else kind
    return "" if full == "application/json" or not is_media_type(full) else full


def part_type(encoding: Mapping[str, Any]) -> str:
    """Return the content type that a part of a multipart body must have; empty if it is open."""
    kind = encoding.get("contentType")
    if not isinstance(kind, str) or not kind.strip():
        return ""
    if "," in kind or "*" in kind:  # a choice: the bytes are sent as what they are
        first = kind.partition(",")[0].strip()
        return "" if first.startswith(("text/", "*/*")) else "application/octet-stream"
    return essence(kind)
