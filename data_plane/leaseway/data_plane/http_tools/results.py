"""HTTP responses as MCP results: text, a rendered template, an image, or an error of the tool."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import msgspec

from leaseway.templates.engine import Template
from leaseway.templates.limits import TemplateFailure
from leaseway.wire.bounds import KIB

MAX_SHOWN: Final = 64 * KIB
"""Characters of an answer that an error repeats."""

_SUCCESS: Final = range(200, 300)
_TEXTS: Final = ("text/", "application/xml", "application/yaml", "application/x-www-form")
_UNKNOWN: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Response:
    """What a server answered.

    Attributes:
        status: The HTTP status.
        headers: Its headers; they are asked for in small letters, and found in any.
        body: Its body, decompressed.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def media_type(self) -> str:
        """The type of its body in small letters, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def text(self) -> str:
        """Its body as text, in the charset that it names, else UTF-8."""
        _, _, rest = self.headers.get("content-type", "").lower().partition("charset=")
        charset = rest.partition(";")[0].strip(" \"'") or "utf-8"
        try:
            return self.body.decode(charset, "replace")
        except LookupError:
            return self.body.decode("utf-8", "replace")


def result(
    response: Response, template: Template | None, hide: Callable[[str], str] = str
) -> tuple[bytes, bool]:
    """Return the MCP result that a response means, and whether it is an error of the tool.

    Args:
        response: The response.
        template: What makes a text of a JSON answer, or None.
        hide: Takes the server's credentials out of what an error repeats: many servers answer a
            request that they refuse with its address.
    """
    if response.status not in _SUCCESS:
        return _result(hide(_refusal(response)), response, is_error=True)
    if template is not None:
        return _rendered(response, template, hide)
    kind = response.media_type
    if not response.body:
        return _result(_status_line(response), response)
    if kind.startswith(("image/", "audio/")):
        item = {"type": kind.partition("/")[0], "data": _base64(response), "mimeType": kind}
        return _encoded([item], response)
    if _is_text(response):
        return _result(response.text, response)
    blob = {"uri": "response:", "mimeType": kind or _UNKNOWN, "blob": _base64(response)}
    return _encoded([{"type": "resource", "resource": blob}], response)


def _rendered(
    response: Response, template: Template, hide: Callable[[str], str]
) -> tuple[bytes, bool]:
    try:
        data = msgspec.json.decode(response.body)
    except (msgspec.DecodeError, RecursionError):
        why = "the answer is not JSON"
    else:
        try:
            return _result(template.render(data), response)
        except TemplateFailure as failure:
            line = f", line {failure.line}" if failure.line else ""
            why = f"{failure}{line}"
    text = f"The response template failed: {why}.\nThe answer was:\n{_shown(response)}"
    return _result(hide(text), response, is_error=True)


def _refusal(response: Response) -> str:
    said = [
        f"{name.title()}: {response.headers[name][:1024]}"
        for name in ("retry-after", "location")
        if name in response.headers
    ]
    return "\n".join(filter(None, [_status_line(response), *said, _shown(response)]))


def _status_line(response: Response) -> str:
    try:
        phrase = HTTPStatus(response.status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP {response.status} {phrase}".rstrip()


def _shown(response: Response) -> str:
    """Return a response's body as an error may repeat it."""
    if not response.body:
        return ""
    if not _is_text(response):
        return f"({len(response.body)} bytes of {response.media_type or _UNKNOWN})"
    text = response.text
    if len(text) <= MAX_SHOWN:
        return text
    return f"{text[:MAX_SHOWN]}\n({len(text) - MAX_SHOWN} more characters are not shown)"


def _is_text(response: Response) -> bool:
    kind = response.media_type
    if kind.startswith(_TEXTS) or kind.partition("+")[2] in ("json", "xml", "yaml"):
        return True
    if kind in ("application/json", "application/javascript", "application/ndjson"):
        return True
    if kind not in ("", _UNKNOWN):
        return False
    try:
        response.body.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in response.body


def _base64(response: Response) -> str:
    return base64.b64encode(response.body).decode()


def _result(text: str, response: Response, *, is_error: bool = False) -> tuple[bytes, bool]:
    return _encoded([{"type": "text", "text": text}], response, is_error=is_error)


def _encoded(
    content: list[dict[str, Any]], response: Response, *, is_error: bool = False
) -> tuple[bytes, bool]:
    made: dict[str, Any] = {"content": content}
    if is_error:
        made["isError"] = True
        meta: dict[str, object] = {"leaseway/http_status": response.status}
        if "retry-after" in response.headers:
            meta["leaseway/retry_after"] = response.headers["retry-after"][:256]
        made["_meta"] = meta
    return msgspec.json.encode(made), is_error
