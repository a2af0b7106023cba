"""Corrects results of calls, and what servers ask, so that every MCP client reads it alike. Pure.

Many servers send null for what is absent, or a text where MCP has a list of contents. Official
clients reject the whole for one such member. Only what is wrong is changed: all other values
keep their bytes, and what is no content becomes a text, so that nothing is lost.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from leaseway.data_plane.core.definitions import members as read
from leaseway.data_plane.core.definitions.forms import corrected_form
from leaseway.data_plane.core.definitions.members import Changes, Members, Reader
from leaseway.wire.bounds import KIB, MIB
from leaseway.wire.messages.artifact_refs import type_of_bytes
from leaseway.wire.messages.portable_json import has_many_values
from leaseway.wire.text.base64_text import looks_standard, split_data_url, standard

_HOST: Final = r"(?:[^\x00-\x20<>\[\]^|:/?#@\\]+|\[[0-9A-Fa-f:.]+\])"
URI: Final = (
    r"^(?!(?i:https?|wss?|ftp)://(?:[?#]|$))[A-Za-z][A-Za-z0-9+.-]*:"
    rf"(?:(?!//)|//(?:(?:[^/?#]*@)?{_HOST}(?::[0-9]{{0,5}})?)?(?:[/?#\\]|$))"
)
"""How a URI begins: with a scheme, and a host and port if it has `//`.

Official clients of version 1 in Python reject a whole result for contents, or a link, of another.
"""
_is_uri: Final = re.compile(URI).match
_FORM_MARK: Final = b"requestedSchema"
_MAX_FORM: Final = 64 * KIB
"""Bytes of a request with a form that is corrected."""
_MAX_ITEMS: Final = 1_000
"""Items of a list that are corrected; a longer list stays as it is."""
_OF_RESULTS: Final = frozenset(
    {"structuredContent", "isError", "resultType", "_meta", "ttlMs", "cacheScope"}
)
_OF_ANY: Final = frozenset({"type", "annotations", "_meta"})
"""Members of any item of content."""
_OF_CONTENTS: Final = ("uri", "mimeType", "text", "blob")
_OF_ALL_CONTENTS: Final = _OF_ANY.union(_OF_CONTENTS)
_MAX_SAID: Final = MIB
"""Bytes of a text that repeats what a result says."""
_MAX_VALUES: Final = 1_000
"""Values of a member of an item that is corrected; one with more is dropped."""
_ANY_BYTES: Final = "application/octet-stream"
_FIRST: Final = 24
"""Characters of base64 that tell the type of what they encode."""

_FLAGS: Final[Mapping[str, bool]] = {"true": True, "1": True, "false": False, "0": False}
"""What servers write for a boolean: a text, or the number of a language without booleans."""

_RawMembers = dict[str, msgspec.Raw]
_object: Final = msgspec.json.Decoder(_RawMembers).decode
_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_value: Final = msgspec.json.Decoder().decode

_COMMON: Final[Mapping[str, Reader]] = {"_meta": read.mapping}
_RESOURCE: Final[Mapping[str, Reader]] = {**_COMMON, "mimeType": read.text}
_PROMPT: Final[Mapping[str, Reader]] = {"description": read.text}

_OF_MODELS: Final = frozenset({"assistant", "model", "ai", "bot"})
"""Roles by which frameworks call what a model says; MCP has only this one and the user's."""
_ROLES: Final = (b'"user"', b'"assistant"')
_PYTHON_BYTES: Final = ("b'", 'b"')
"""How base64 begins that Python wrote with `str`."""


def corrected(result: bytes, *, for_client: bool = False) -> tuple[bytes, str]:
    """Return a result as MCP has it, and what was changed, in words; empty if nothing.

    Args:
        result: The `result` of a response.
        for_client: Whether it is for an MCP client: types of content that MCP does not name, and
            links without a URI, for which such clients reject the whole, become texts.

    Raises:
        ValueError: It is no JSON object, or its `isError` says neither true nor false.
    """
    members = _object(result)
    changes = Changes()
    _correct_flag(members, changes)
    if "resultType" in members and _starts(members["resultType"], b"null"):
        del members["resultType"]  # another wrong type says that the result is not complete
        changes.dropped("resultType", None)
    _correct_optional(members, _COMMON, changes)
    _correct_token(members, changes)
    if "messages" in members:
        _correct_optional(members, _PROMPT, changes)
        _part_messages(members, changes)
    for name, correct in _LISTS.items():
        if name in members:
            _correct_list(members, name, correct, changes)
    if for_client:
        _show_as_texts(members, changes)
    return (msgspec.json.encode(members), str(changes)) if changes.any else (result, "")


def with_content(result: bytes) -> bytes:
    """Return the result of a tool that has no `content` with one, which official clients require.

    That is the text of what it says otherwise: models read only `content` in many clients.
    """
    members = _object(result)
    return msgspec.json.encode({"content": _said(members), **members})


def with_messages(result: bytes) -> bytes:
    """Return the result of a prompt that has no `messages` with what it says otherwise."""
    members = _object(result)
    said = _said({name: value for name, value in members.items() if name not in _PROMPT})
    messages = [{"role": "user", "content": text} for text in said]
    return msgspec.json.encode({"messages": messages, **members})


def with_contents(result: bytes) -> bytes:
    """Return what was read of a resource without `contents` with what it says otherwise."""
    members = _object(result)
    if "text" in members or "blob" in members:  # it is the contents itself
        own = {name: members.pop(name) for name in _OF_CONTENTS if name in members}
        contents = [_contents(_raw(own), Changes())]
    else:
        contents = [_contents(_raw(text["text"]), Changes()) for text in _said(members)]
    return msgspec.json.encode({"contents": contents, **members})


def _said(members: _RawMembers) -> list[dict[str, str]]:
    """Return a text with what a result says; none if that is nothing, or much."""
    structured = members.get("structuredContent")
    if structured is not None and not _starts(structured, b"null"):
        said = bytes(structured)
    else:
        said = msgspec.json.encode(
            {name: value for name, value in members.items() if name not in _OF_RESULTS}
        )
    is_text = said != b"{}" and len(said) <= _MAX_SAID
    return [{"type": "text", "text": said.decode()}] if is_text else []


REQUIRED: Final[Mapping[str, tuple[str, Callable[[bytes], bytes]]]] = {
    "": ("content", with_content),
    "prompts/get": ("messages", with_messages),
    "resources/read": ("contents", with_contents),
}
"""The member without which clients reject the result of a method, and what adds it; the method of
tools is empty."""


def without_type(result: bytes) -> bytes:
    """Return a result without its type, which no version before 2026-07-28 knows."""
    members = _object(result)
    del members["resultType"]
    return msgspec.json.encode(members)


def corrected_params(params: bytes) -> bytes:
    """Return the params of a server's request as MCP has them.

    No member of such params may be null (2025-11-25 and 2026-07-28, schema).

    Raises:
        ValueError: They are no JSON object.
    """
    has_form = params.find(_FORM_MARK) >= 0 and len(params) <= _MAX_FORM
    if params.find(b"null") < 0 and not has_form:
        return params
    members = _object(params)
    kept = {name: value for name, value in members.items() if not _starts(value, b"null")}
    changes = Changes()
    if "messages" in kept:
        _correct_list(kept, "messages", _message, changes)
    if has_form and "requestedSchema" in kept:
        form = _value(kept["requestedSchema"])
        corrected_one = corrected_form(form)
        written = _raw(corrected_one)
        # A reference becomes what it leads to, so that many to a long part would make it long.
        if corrected_one is not form and len(bytes(written)) <= _MAX_FORM:
            kept["requestedSchema"] = written
            changes.any = True
    is_changed = changes.any or len(kept) < len(members)
    return msgspec.json.encode(kept) if is_changed else params


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _starts(raw: msgspec.Raw, first: bytes) -> bool:
    return memoryview(raw)[: len(first)] == first


def _sample(raw: msgspec.Raw) -> Any:
    """Return a value of the same type, without decoding a large one."""
    if _starts(raw, b"{"):
        return {}
    return [] if _starts(raw, b"[") else _value(raw)


def _is_text(members: _RawMembers, name: str) -> bool:
    return name in members and _starts(members[name], b'"')


def _correct_flag(members: _RawMembers, changes: Changes) -> None:
    """Correct `isError`; raises `ValueError` if it has no meaning."""
    flag = _value(members["isError"]) if "isError" in members else True
    if flag is None:
        del members["isError"]
        changes.dropped("isError", flag)
    elif not isinstance(flag, bool):
        said = str(flag).lower()
        if said not in _FLAGS:
            raise ValueError("isError is no boolean")
        changes.add("isError is a text" if isinstance(flag, str) else "isError is a number")
        members["isError"] = _raw(_FLAGS[said])


def _correct_token(members: _RawMembers, changes: Changes) -> None:
    """Drop a progress token that is none: clients in JavaScript do not even read the response."""
    meta = _object(members["_meta"]) if "_meta" in members else {}
    token = _value(meta["progressToken"]) if "progressToken" in meta else ""
    if not isinstance(token, str | int) or isinstance(token, bool):
        del meta["progressToken"]
        members["_meta"] = _raw(meta)
        changes.dropped("_meta.progressToken", token)


def _part_messages(members: _RawMembers, changes: Changes) -> None:
    """Give each content of a prompt's message a message of its own: MCP has one in each.

    Only the first one keeps further members, as many copies of a long one would take much memory.
    """
    given = members["messages"]
    is_one = _starts(given, b"{")
    if not (is_one or _starts(given, b"[")) or has_many_values(bytes(given)):
        return
    if is_one:
        changes.add("messages is no list")
    parted: list[msgspec.Raw] = []
    for message in (given,) if is_one else _list(given):
        parts = _object(message) if _starts(message, b"{") else {}
        if "content" in parts and _starts(parts["content"], b"["):
            changes.add("the content of a message is a list")
            contents = [
                part if _starts(part, b"{") else _text_of(part) for part in _list(parts["content"])
            ]
            _correct_role(parts, changes)
            for content in contents:
                parted.append(_raw({**parts, "content": content}))
                parts = {"role": parts["role"]}
        else:
            parted.append(message)
    members["messages"] = _raw(parted)


def _correct_optional(
    members: _RawMembers, readers: Mapping[str, Reader], changes: Changes, path: str = ""
) -> None:
    """Drop optional members of the wrong type."""
    given: Members = {name: _sample(members[name]) for name in readers if name in members}
    kept = dict(given)
    read.read_members(kept, readers, changes, path)
    _replace(members, given, kept)


def _correct_member(
    members: _RawMembers,
    name: str,
    correct: Callable[[Members, Changes], None],
    changes: Changes,
) -> None:
    """Correct a member that has members or items itself, or drop it."""
    if name not in members:
        return
    if bytes(members[name]).count(b",") > _MAX_VALUES:
        changes.dropped(f"content.{name}", _sample(members.pop(name)))
    else:
        kept: Members = {name: _value(members[name])}
        correct(kept, changes)
        _replace(members, {name: _value(members[name])}, kept)


def _replace(members: _RawMembers, given: Members, kept: Members) -> None:
    for name, value in given.items():
        if name not in kept:
            del members[name]
        elif kept[name] != value:
            members[name] = _raw(kept[name])


def _show_as_texts(members: _RawMembers, changes: Changes) -> None:
    """Turn content that clients do not accept, but services do, into texts with its JSON."""
    for name in ("content", "messages"):
        given = members.get(name)
        if given is None or has_many_values(bytes(given)):
            continue
        items = _list(given)
        if len(items) > _MAX_ITEMS:
            continue  # they were not corrected, and may lack a type
        items = [_as_accepted(item, name, changes) for item in items]
        if changes.any:
            members[name] = _raw(items)


def _as_accepted(item: msgspec.Raw, of: str, changes: Changes) -> msgspec.Raw:
    members = _object(item)
    if of == "messages":
        return _raw({**members, "content": _as_accepted(members["content"], "content", changes)})
    kind = _value(members["type"])
    if kind not in _KINDS:
        changes.add("an item of content has a type that MCP does not name")
    elif kind == "resource_link" and not _is_uri(_value(members["uri"])):
        changes.add("the URI of a link has no scheme, or an invalid host")
    else:
        return item
    return _text_of(item)


_Correct = Callable[[msgspec.Raw, Changes], msgspec.Raw]


def _correct_list(members: _RawMembers, name: str, correct: _Correct, changes: Changes) -> None:
    """Correct the items of a list; something else than a list is its only item."""
    given = members[name]
    if _starts(given, b"null"):
        changes.dropped(name, None)
        items = []
    elif _starts(given, b"["):
        if has_many_values(bytes(given)):
            return  # to take it apart would take long
        items = _list(given)
    else:
        changes.add(f"{name} is no list")
        items = [given]
    if len(items) <= _MAX_ITEMS:
        items = [correct(item, changes) for item in items]
    if changes.any:
        members[name] = _raw(items)


def _content(item: msgspec.Raw, changes: Changes) -> msgspec.Raw:
    """Correct one item of content."""
    if not _starts(item, b"{"):
        changes.add("an item of content is no object")
        return _text_of(item)
    members = _object(item)
    before = dict(members)
    kind = _kind(members, changes)
    read_kind = _KINDS.get(kind)
    if read_kind is None:
        return item if kind else _text_of(item)  # a type of a newer version, or the server's own
    if not read_kind(members, changes):
        changes.add(f"an item of type {kind} lacks what it needs")
        return _text_of(item)
    _correct_optional(members, _COMMON, changes, "content.")
    _correct_member(members, "annotations", read.read_annotations, changes)
    return item if members == before else _raw(members)


def _kind(members: _RawMembers, changes: Changes) -> str:
    """Return the type of an item of content, and give it one by what it has; empty if it cannot."""
    kind = _value(members["type"]) if "type" in members else None
    if isinstance(kind, str):
        meant = _SPELLED.get(_not_letters.sub("", kind.lower()), "")
        if meant == kind or not (meant or _is_text(members, "text")):
            return kind
        changes.add("an item of content has a type that MCP does not name")
        members["type"] = _raw(meant or "text")
        return meant or "text"
    changes.add("an item of content has no type")
    kind = next((kind for name, kind in _SHOWS.items() if name in members), "")
    if kind:
        members["type"] = _raw(kind)
    return kind


def _text_of(raw: msgspec.Raw) -> msgspec.Raw:
    """Return a text with a value: itself, or as JSON."""
    return _raw({"type": "text", "text": _shown(raw)})


def _shown(raw: msgspec.Raw) -> msgspec.Raw:
    """Return a text, or another value as a text with its JSON."""
    return raw if _starts(raw, b'"') else _raw(bytes(raw).decode())


def _read_text(members: _RawMembers, changes: Changes) -> bool:
    if "text" not in members and not _OF_ANY.issuperset(members):
        return False  # such as a text in `value`
    if not _is_text(members, "text"):
        given = members.get("text", msgspec.Raw(b"null"))
        changes.dropped("content.text", _sample(given))
        members["text"] = _raw("" if _starts(given, b"null") else bytes(given).decode())
    return True


def _read_media(members: _RawMembers, changes: Changes) -> bool:
    if not _correct_data(members, "data", changes):
        return False
    if not _is_text(members, "mimeType"):
        changes.add("content.mimeType is missing")
        members["mimeType"] = _raw(_type_of(members["data"]))
    return True


def _correct_data(members: _RawMembers, name: str, changes: Changes) -> bool:
    """Correct base64, which clients in JavaScript check; return whether it is base64."""
    if not _is_text(members, name):
        return False
    text = _value(members[name])
    if looks_standard(text.encode()):
        return True
    if text.startswith(_PYTHON_BYTES):
        text = text[2:-1]
    kind, base64 = split_data_url(text.encode())
    base64 = standard(base64)
    if not looks_standard(base64):
        return False
    changes.add(f"{name} is not only base64 with the usual alphabet")
    members[name] = _raw(bytes(base64).decode())
    if kind and "mimeType" not in members:
        members["mimeType"] = _raw(kind.partition(";")[0])
    return True


def _type_of(data: msgspec.Raw) -> str:
    """Return the type of what a text in base64 encodes."""
    first = bytes(memoryview(data)[1 : _FIRST + 1])
    try:
        return type_of_bytes(binascii.a2b_base64(first)) or _ANY_BYTES
    except binascii.Error:
        return _ANY_BYTES


def _read_link(members: _RawMembers, changes: Changes) -> bool:
    if not _is_text(members, "uri"):
        return False
    _correct_optional(members, read.RESOURCE, changes, "content.")
    if "name" not in members:
        changes.add("content.name is missing")
        members["name"] = members["uri"]
    _correct_member(members, "icons", read.read_icons, changes)
    return True


def _read_embedded(members: _RawMembers, changes: Changes) -> bool:
    if "resource" not in members and "uri" in members:  # the members of its contents are its own
        changes.add("the members of a resource are those of its item")
        own = {name: members.pop(name) for name in _OF_CONTENTS if name in members}
        members["resource"] = _raw(own)
    resource = members.get("resource", msgspec.Raw(b"null"))
    if not _starts(resource, b"{"):
        return False
    contents = _object(resource)
    if not (_is_text(contents, "text") or _is_text(contents, "blob")):
        return False
    members["resource"] = _contents(resource, changes)
    return True


def _contents(item: msgspec.Raw, changes: Changes) -> msgspec.Raw:
    """Correct the contents of one resource."""
    if not _starts(item, b"{"):
        changes.add("the contents of a resource are no object")
        item = _raw({"text": _shown(item)})
    members = _object(item)
    before = dict(members)
    _correct_optional(members, _RESOURCE, changes, "contents.")
    uri = _value(members["uri"]) if _is_text(members, "uri") else ""
    if not _is_uri(uri):
        changes.add("the URI of contents has no scheme, or an invalid host")
        members["uri"] = _raw(f"resource:{quote(uri)}")
    meant = _raw("")
    for name in ("text", "blob"):
        if name in members and not _is_text(members, name):
            changes.dropped(f"contents.{name}", _sample(members[name]))
            if not _starts(members[name], b"null"):
                meant = _shown(members[name])
            del members[name]
    if "blob" in members and not _correct_data(members, "blob", changes):
        changes.add("the blob of contents is no base64")
        members.setdefault("text", members.pop("blob"))
    if "text" not in members and "blob" not in members:
        changes.add("the contents of a resource have neither text nor blob")
        own = {name: value for name, value in members.items() if name not in _OF_ALL_CONTENTS}
        members["text"] = _shown(_raw(own)) if own else meant
    return item if members == before else _raw(members)


def _message(item: msgspec.Raw, changes: Changes) -> msgspec.Raw:
    """Correct one message of a prompt, or of a request for sampling."""
    if not _starts(item, b"{"):
        changes.add("a message is no object")
        item = _raw({"role": "user", "content": _text_of(item)})
    members = _object(item)
    before = dict(members)
    _correct_role(members, changes)
    if "content" not in members:
        changes.add("a message has no content")
        said = {name: value for name, value in before.items() if name != "role"}
        members["content"] = _raw(
            {"type": "text", "text": "", **said} if not said or "text" in said else said
        )
    if not _starts(members["content"], b"["):
        members["content"] = _content(members["content"], changes)
    return item if members == before else _raw(members)


def _correct_role(members: _RawMembers, changes: Changes) -> None:
    role = members.get("role", msgspec.Raw(b"null"))
    if bytes(role) not in _ROLES:
        changes.add("a message has a role that MCP does not have")
        is_of_model = str(_sample(role)).lower() in _OF_MODELS
        members["role"] = _raw("assistant" if is_of_model else "user")


_LISTS: Final[Mapping[str, _Correct]] = {
    "content": _content,
    "messages": _message,
    "contents": _contents,
}
_KINDS: Final[Mapping[str, Callable[[_RawMembers, Changes], bool]]] = {
    "text": _read_text,
    "image": _read_media,
    "audio": _read_media,
    "resource_link": _read_link,
    "resource": _read_embedded,
}
_SPELLED: Final[Mapping[str, str]] = {
    **{kind.replace("_", ""): kind for kind in _KINDS},
    "embeddedresource": "resource",
}
"""Types of contents by their letters, which servers write in other ways."""
_not_letters: Final = re.compile(r"[^a-z]+")
_SHOWS: Final[Mapping[str, str]] = {"text": "text", "resource": "resource"}
"""Types of contents by the member that only they have."""
