"""Converts HTTP responses to MCP results: text, a rendered template, an image, or an error."""

from __future__ import annotations

import base64
import gzip
import io
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

import msgspec

from leaseway.spec.kinds.http_tools import HttpTool
from leaseway.templates.limits import TemplateFailure
from leaseway.wire.bounds import KIB
from leaseway.wire.messages.charsets import is_charset, text_of_body, text_of_header

MAX_SHOWN: Final = 64 * KIB
"""Maximum characters of a response in an error."""

_SUCCESS: Final = frozenset((*range(200, 300), 304))
"""304 answers whether something has changed, which a parameter such as `If-None-Match` asks."""
_FILES: Final = ("application/pdf", "application/postscript", "application/rtf")
"""Files for programs, though some have no byte that a text could not have."""
_MEDIA: Final = ("image/", "audio/", "video/", "font/")
_UNKNOWN: Final = "application/octet-stream"
_MAX_HEADER: Final = 2_048
_ONWARD: Final = ("retry-after", "location", "operation-location", "azure-asyncoperation")
"""Headers that say how to go on: where a thing is, and when to ask again."""
_CONDITIONS: Final = {
    "if-match": "etag",
    "if-none-match": "etag",
    "if-unmodified-since": "last-modified",
    "if-modified-since": "last-modified",
}
"""Headers of requests that name a version, with those of responses that say which one it is."""
_OF_REFUSALS: Final = ("allow", "www-authenticate")
_OF_CONNECTION: Final = frozenset(("connection", "keep-alive", "transfer-encoding", "set-cookie"))
_NEXT_PAGE: Final = re.compile(
    r"""<[^<>]*>[^<]*?;\s*rel\s*=\s*(?:"[^"]*\bnext\b|next\b)""", re.IGNORECASE
)
"""The link to the next page (RFC 8288), without what follows its relation."""
_DOWNLOAD: Final = re.compile(r"\s*attachment\s*;.*\bfilename\b", re.IGNORECASE)
"""A `Content-Disposition` with a name. Some frameworks call every response `inline`, with any."""
_GZIP: Final = b"\x1f\x8b"
_UTF8: Final = ("utf-8", "utf8")


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP response; its body is decompressed.

    Attributes:
        is_of_headers: Whether its headers are what was asked for, as those of HEAD.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_of_headers: bool = False

    @property
    def is_success(self) -> bool:
        return self.status in _SUCCESS

    def header(self, name: str) -> str:
        """Return the value of a header, or an empty text."""
        return text_of_header(self.headers.get(name, ""))

    @property
    def media_type(self) -> str:
        """The media type in lower case, without parameters."""
        return self.header("content-type").partition(";")[0].strip().lower()

    @property
    def text(self) -> str:
        """The body as text, without a byte order mark."""
        return text_of_body(self.body, self.charset)

    @property
    def utf8(self) -> bytes:
        """The body in UTF-8, without a byte order mark."""
        if self.charset in _UTF8 or (not self.charset and self.body.isascii()):
            return self.body.removeprefix(BOM_UTF8)
        return self.text.encode("utf-8", "replace")

    @property
    def charset(self) -> str:
        """The charset that the response names, in lower case, or an empty text."""
        _, _, rest = self.header("content-type").lower().partition("charset=")
        return rest.partition(";")[0].strip(" \"'")


def conditions(tools: Iterable[HttpTool]) -> tuple[str, ...]:
    """Return the headers of responses that parameters of tools repeat, as their conditions."""
    sent = {
        parameter.sent_as.lower()
        for tool in tools
        for parameter in tool.parameters
        if parameter.position == "header"
    }
    found = (told for condition, told in _CONDITIONS.items() if condition in sent)
    return tuple(dict.fromkeys(found))


def result(
    response: HttpResponse, hide: Callable[[str], str] = str, told: Iterable[str] = ()
) -> tuple[bytes, bool]:
    """Return the MCP result of a response, and whether it is an error of the tool.

    Args:
        response: The response.
        hide: Removes the server's credentials from errors: many servers repeat the request's URL
            in an error response.
        told: Further headers that say how to go on, in lower case.
    """
    if not response.is_success:
        return _result(hide(_describe_error(response, told)), response, is_error=True)
    if not response.body:  # what was made has its address here
        return _result(hide(_head(response, told)), response)
    items = [_item(response)]
    onward = _onward(response, told)
    if onward:  # beside the text, which stays the JSON that programs parse
        text = hide("\n".join(onward))
        headers = {"uri": "response:headers", "mimeType": "text/plain", "text": text}
        items.append({"type": "resource", "resource": headers})
    return _encode(items, response)


def _item(response: HttpResponse) -> dict[str, Any]:
    """Return the body as an item of a result."""
    kind = response.media_type
    if _is_text(response):  # an image may be one: clients show no SVG, and models read it
        return {"type": "text", "text": response.text}
    if kind.startswith(("image/", "audio/")):
        return {"type": kind.partition("/")[0], "data": _base64(response), "mimeType": kind}
    blob = {"uri": "response:", "mimeType": kind or _UNKNOWN, "blob": _base64(response)}
    return {"type": "resource", "resource": blob}


def rendered_result(text: str, response: HttpResponse) -> tuple[bytes, bool]:
    """Return the result of a response that a template has rendered."""
    return _result(text, response)


def failed_rendering(
    failure: TemplateFailure, response: HttpResponse, hide: Callable[[str], str] = str
) -> tuple[bytes, bool]:
    """Return the result of a response that its template could not render."""
    line = f", line {failure.line}" if failure.line else ""
    text = (
        f"The response template failed: {failure}{line}.\nThe response was:\n{_excerpt(response)}"
    )
    return _result(hide(text), response, is_error=True)


def _describe_error(response: HttpResponse, told: Iterable[str]) -> str:
    return "\n".join(filter(None, [_head(response, told), _excerpt(response)]))


def _head(response: HttpResponse, told: Iterable[str]) -> str:
    """Return the status, and the headers that say how to go on, or all if they were asked for."""
    lines = [_status_line(response)]
    if response.is_of_headers:
        headers = response.headers.items()
        shown = ((name, value) for name, value in headers if name.lower() not in _OF_CONNECTION)
        lines += [_line(name, text_of_header(value)) for name, value in shown]
    else:
        lines += [*_onward(response, told), *_lines(response, _OF_REFUSALS)]
    return "\n".join(lines)[:MAX_SHOWN]


def _onward(response: HttpResponse, told: Iterable[str]) -> list[str]:
    """Return the headers that say how to go on, also to the next page, or what a file is named."""
    lines = _lines(response, (*_ONWARD, *told))
    if "link" in response.headers:
        links = (value for name, value in response.headers.items() if name.lower() == "link")
        found = _NEXT_PAGE.search(text_of_header(", ".join(links))[:MAX_SHOWN])
        if found is not None:
            target = found[0].partition(">")[0]
            lines.append(_line("link", f'{target}>; rel="next"'))
    if _DOWNLOAD.match(response.header("content-disposition")):
        lines += _lines(response, ["content-disposition"])
    return lines


def _lines(response: HttpResponse, names: Iterable[str]) -> list[str]:
    return [_line(name, response.header(name)) for name in names if name in response.headers]


def _line(name: str, value: str) -> str:
    return f"{name.title()}: {value[:_MAX_HEADER]}"


def _status_line(response: HttpResponse) -> str:
    try:
        phrase = HTTPStatus(response.status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP {response.status} {phrase}".rstrip()


def _excerpt(response: HttpResponse) -> str:
    """Return a response's body for an error."""
    if not response.body:
        return ""
    if not _is_text(response):
        return f"({len(response.body)} bytes of {response.media_type or _UNKNOWN})"
    text = response.text
    if len(text) <= MAX_SHOWN:
        return text
    return f"{text[:MAX_SHOWN]}\n({len(text) - MAX_SHOWN} more characters are not shown)"


def is_text_type(kind: str) -> bool:
    """Return whether a media type, in lower case, is of texts alone."""
    return (
        kind.startswith("text/")
        or kind in ("application/json", "application/xml")
        or kind.partition("+")[2] in ("json", "xml", "yaml")
    )


def is_packed(response: HttpResponse) -> bool:
    """Return whether a text is still compressed, as when a file `.json.gz` is served as JSON."""
    return response.body.startswith(_GZIP) and is_text_type(response.media_type)


def unpacked(response: HttpResponse, limit: int) -> HttpResponse:
    """Return a response with its body decompressed, unless it is no whole gzip.

    Args:
        response: The response.
        limit: Bytes of a body; one more of a larger one are returned.
    """
    try:
        with gzip.open(io.BytesIO(response.body)) as file:  # it may be several, one after the other
            return replace(response, body=file.read(limit + 1))
    except (OSError, EOFError, zlib.error):
        return response


def _is_text(response: HttpResponse) -> bool:
    kind = response.media_type
    if is_text_type(kind):
        return True
    if kind in _FILES or kind.startswith(_MEDIA):
        return False
    if is_charset(response.charset):
        return True
    # No list of types is complete: NDJSON, YAML, mails and molecules have several names each.
    try:
        response.body.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in response.body


def _base64(response: HttpResponse) -> str:
    return base64.b64encode(response.body).decode()


def _result(text: str, response: HttpResponse, *, is_error: bool = False) -> tuple[bytes, bool]:
    return _encode([{"type": "text", "text": text}], response, is_error=is_error)


def _encode(
    content: list[dict[str, Any]], response: HttpResponse, *, is_error: bool = False
) -> tuple[bytes, bool]:
    encoded: dict[str, Any] = {"content": content}
    if is_error:
        encoded["isError"] = True
        meta: dict[str, object] = {"leaseway/http_status": response.status}
        if "retry-after" in response.headers:
            meta["leaseway/retry_after"] = response.header("retry-after")[:256]
        encoded["_meta"] = meta
    return msgspec.json.encode(encoded), is_error
