"""Converts operations of an OpenAPI document to HTTP tools, or reports why it can't."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from leaseway.control_plane.config.openapi.schemas import References, SchemaReader, Unsupported
from leaseway.control_plane.config.openapi.security import Scheme, schemes
from leaseway.spec.http_tools import (
    MAX_PARAMETERS,
    METHODS,
    READ_METHODS,
    Body,
    HttpParameter,
    HttpTool,
    Position,
    Style,
    find_faults,
    holds_bytes,
)

_MAX_NAME: Final = 64
_MAX_DESCRIPTION: Final = 2_048
_MAX_MEMBERS: Final = 100
_MAX_OPERATIONS: Final = 10_000
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]+")
_NOT_IN_PARAMETERS: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_IGNORED_HEADERS: Final = frozenset(("accept", "content-type", "authorization"))
_QUERY_STYLES: Final[Mapping[str, Style]] = {
    "spaceDelimited": "space",
    "pipeDelimited": "pipe",
    "deepObject": "deep",
}


class BadDocument(Exception):
    """A document that is not OpenAPI 3; the message is a sentence."""


@dataclass(frozen=True)
class OperationSelection:
    """The chosen operations, by patterns with `*` of ids, tags and paths.

    Without any inclusion all operations are chosen, except those that an exclusion matches.
    """

    include_operations: tuple[str, ...] = ()
    include_tags: tuple[str, ...] = ()
    include_paths: tuple[str, ...] = ()
    exclude_operations: tuple[str, ...] = ()
    exclude_tags: tuple[str, ...] = ()
    exclude_paths: tuple[str, ...] = ()

    def includes(self, operation: str, tags: list[str], path: str) -> bool:
        names = ((operation,), tuple(tags), (path,))
        included = (self.include_operations, self.include_tags, self.include_paths)
        excluded = (self.exclude_operations, self.exclude_tags, self.exclude_paths)
        if any(included) and not _matches(included, names):
            return False
        return not _matches(excluded, names)


def _matches(patterns: tuple[tuple[str, ...], ...], names: tuple[tuple[str, ...], ...]) -> bool:
    return any(
        fnmatchcase(name, pattern)
        for kind_patterns, kind_names in zip(patterns, names, strict=True)
        for pattern in kind_patterns
        for name in kind_names
    )


@dataclass(frozen=True)
class SkippedOperation:
    """An operation that can't become a tool, by its method and path."""

    operation: str
    reason: str


@dataclass(frozen=True)
class Imported:
    """The content of a document: tools with unique names, in the order of the chosen operations.

    `base_url` may be empty; `skipped` are the chosen operations that can't become tools.
    """

    title: str
    base_url: str
    tools: tuple[HttpTool, ...]
    skipped: tuple[SkippedOperation, ...]
    schemes: Mapping[str, Scheme]


def import_document(
    document: object, selection: OperationSelection = OperationSelection()
) -> Imported:
    """Return a document's tools.

    Raises:
        BadDocument: It is not OpenAPI 3.0 or 3.1.
    """
    if not isinstance(document, Mapping):
        raise BadDocument("It is not an OpenAPI document: it must be a mapping.")
    version = str(document.get("openapi", ""))
    if not version.startswith(("3.0", "3.1")):
        found = f"OpenAPI {version[:16]}" if version else "no version of OpenAPI"
        if "swagger" in document:
            found = f"Swagger {str(document['swagger'])[:16]}"
        raise BadDocument(f"It has {found}, but 3.0 or 3.1 is needed. Convert it first.")
    if not isinstance(document.get("paths", {}), Mapping):
        raise BadDocument("Its 'paths' is not a mapping.")
    return _Importer(document, selection).result()


class _Importer:
    def __init__(self, document: Mapping[str, Any], selection: OperationSelection) -> None:
        self._document = document
        self._selection = selection
        self._references = References(document)
        self._schemas = SchemaReader(self._references)
        self._names: set[str] = set()
        self._tools: list[HttpTool] = []
        self._skipped: list[SkippedOperation] = []

    def result(self) -> Imported:
        for number, (method, path, item, operation) in enumerate(self._operations()):
            if number >= _MAX_OPERATIONS:
                self._skipped.append(
                    SkippedOperation(
                        "The rest", f"there are more than {_MAX_OPERATIONS} operations"
                    )
                )
                break
            self._add(method, path, item, operation)
        info = self._document.get("info")
        title = info.get("title", "") if isinstance(info, Mapping) else ""
        return Imported(
            str(title)[:256],
            self._base_url(),
            tuple(self._tools),
            tuple(self._skipped),
            schemes(self._document, self._references),
        )

    def _operations(self) -> Iterator[tuple[str, str, Mapping[str, Any], Any]]:
        for path, given in self._document.get("paths", {}).items():
            if not str(path).startswith("/"):
                continue  # an extension (x-…)
            try:
                item = self._references.follow(given)
            except Unsupported as error:
                self._skipped.append(SkippedOperation(str(path), str(error)))
                continue
            if not isinstance(item, Mapping):
                self._skipped.append(SkippedOperation(str(path), "it is not a mapping"))
                continue
            for method in (*METHODS, "TRACE"):
                operation = item.get(method.lower())
                if operation is not None:
                    yield method, str(path), item, operation

    def _add(self, method: str, path: str, item: Mapping[str, Any], operation: Any) -> None:
        label = f"{method} {path[:256]}"
        if not isinstance(operation, Mapping):
            self._skipped.append(SkippedOperation(label, "it is not a mapping"))
            return
        identity = str(operation.get("operationId") or f"{method.lower()}{path}")
        tags = [str(tag) for tag in _list(operation.get("tags"))]
        if not self._selection.includes(identity, tags, path):
            return
        try:
            tool = self._tool(method, path, item, operation, identity)
        except Unsupported as error:
            self._skipped.append(SkippedOperation(label, str(error)))
            return
        fault = next(iter(find_faults(tool)), None)
        if fault is not None:
            self._skipped.append(SkippedOperation(label, f"it {fault.message}"))
            return
        self._names.add(tool.name)
        self._tools.append(tool)

    def _tool(
        self, method: str, path: str, item: Mapping[str, Any], operation: Mapping[str, Any],
        identity: str,
    ) -> HttpTool:  # fmt: skip
        if method not in METHODS:
            raise Unsupported(f"the method {method} is not supported")
        if operation.get("servers") or item.get("servers"):
            raise Unsupported("it has its own 'servers'; configure it as a separate server")
        parameters = _Parameters(self._references, self._schemas)
        for given in self._merged(item, operation):
            parameters.add(given)
        body: Body = "json"
        content_type = ""
        given = self._references.follow(operation.get("requestBody"))
        if isinstance(given, Mapping) and given.get("content"):
            if method in READ_METHODS:
                raise Unsupported(f"it needs a body, but {method} has none")
            body, content_type = parameters.add_body(given)
        if len(parameters.parameters) > MAX_PARAMETERS:
            raise Unsupported(f"it has more than {MAX_PARAMETERS} parameters")
        summary = str(operation.get("summary") or "").strip()
        return HttpTool(
            self._name(identity),
            method,
            path,
            _description(summary, operation),
            summary[:128],
            tuple(parameters.parameters),
            body,
            content_type,
            is_anonymous=operation.get("security", self._document.get("security")) == [],
        )

    def _merged(
        self, item: Mapping[str, Any], operation: Mapping[str, Any]
    ) -> list[Mapping[str, Any]]:
        """Return the parameters of an operation's path, overridden and followed by its own."""
        merged: dict[tuple[str, str], Mapping[str, Any]] = {}
        for given in (*_list(item.get("parameters")), *_list(operation.get("parameters"))):
            parameter = self._references.follow(given)
            if not isinstance(parameter, Mapping) or not parameter.get("name"):
                raise Unsupported("one of its parameters has no name")
            merged[str(parameter["name"]), str(parameter.get("in"))] = parameter
        return list(merged.values())

    def _name(self, identity: str) -> str:
        name = _NOT_IN_NAMES.sub("_", identity).strip("_") or "operation"
        if len(name) > _MAX_NAME:
            digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
            name = f"{name[: _MAX_NAME - 9]}_{digest}"
        unique, number = name, 2
        while unique in self._names:
            suffix = f"_{number}"
            unique, number = name[: _MAX_NAME - len(suffix)] + suffix, number + 1
        return unique

    def _base_url(self) -> str:
        servers = _list(self._document.get("servers"))
        server = servers[0] if servers and isinstance(servers[0], Mapping) else {}
        url = str(server.get("url", ""))
        variables = server.get("variables")
        for name, variable in variables.items() if isinstance(variables, Mapping) else ():
            default = variable.get("default", "") if isinstance(variable, Mapping) else ""
            url = url.replace(f"{{{name}}}", str(default))
        return url.rstrip("/") if url.startswith(("http://", "https://")) else ""


class _Parameters:
    """The parameters of one operation, with unique names."""

    def __init__(self, references: References, schemas: SchemaReader) -> None:
        self._references = references
        self._schemas = schemas
        self.parameters: list[HttpParameter] = []

    def add(self, given: Mapping[str, Any]) -> None:
        """Add a parameter of an operation."""
        name, place = str(given["name"]), given.get("in")
        required = given.get("required") is True
        if place == "cookie":
            if required:
                raise Unsupported(f"it needs the cookie {name[:64]!r}")
            return
        if place == "header" and name.lower() in _IGNORED_HEADERS:
            return  # as OpenAPI demands: bodies and security set these headers
        if place == "path":
            self._add(name, "path", self._schema(given), True, self._path_style(given))
        elif place == "query":
            self._add(name, "query", self._schema(given), required, self._query_style(given))
        elif place == "header":
            style: Style = "json" if given.get("content") else "comma"
            self._add(name, "header", self._schema(given), required, style)
        else:
            raise Unsupported(f"its parameter {name[:64]!r} is in {str(place)[:32]!r}")

    def add_body(self, given: Mapping[str, Any]) -> tuple[Body, str]:
        """Add an operation's body; return its encoding and content type.

        The type is empty if the encoding, or the parameter's schema, determines it.
        """
        content = given["content"]
        if not isinstance(content, Mapping):
            raise Unsupported("its body's 'content' is not a mapping")
        kind, body = _body_kind(content)
        media = content[kind]
        schema = media.get("schema", {}) if isinstance(media, Mapping) else {}
        required = given.get("required") is True
        if body in ("binary", "text"):
            read = self._schemas.read(schema)
            read.update({"type": "string"})
            if body == "binary":
                read.pop("format", None)
                read["contentEncoding"] = "base64"
                read.setdefault("description", "The body, as base64.")
            if "*" not in kind:
                read["contentMediaType"] = kind
            self._add("body", "body", read, required, "json", is_body=True)
            return body, ""
        members = self._schemas.object_of(schema)
        if members is not None and len(members["properties"]) <= _MAX_MEMBERS:
            encoding = media.get("encoding") if isinstance(media, Mapping) else None
            self._add_members(members, required, body, encoding)
        elif body == "multipart":
            raise Unsupported("its multipart body is not a plain object")
        else:
            read = self._schemas.read(schema)
            if given.get("description") and "description" not in read:
                read["description"] = str(given["description"])[:1024]
            self._add("body", "body", read, required, "json", is_body=True)
        is_other_json = body == "json" and kind.endswith("+json")
        return body, kind if is_other_json else ""

    def _add_members(
        self, members: Mapping[str, Any], required: bool, body: Body, encoding: Any
    ) -> None:
        for name, schema in members["properties"].items():
            followed = self._references.follow(schema)
            if isinstance(followed, Mapping) and followed.get("readOnly") is True:
                continue
            style: Style = "json" if body == "json" else "repeat"
            if body == "form":
                given = encoding.get(name) if isinstance(encoding, Mapping) else None
                deep = isinstance(given, Mapping) and given.get("style") == "deepObject"
                style = "deep" if deep else "repeat"
            is_required = required and name in members["required"]
            self._add(str(name), "body", self._schemas.read(schema), is_required, style)

    def _schema(self, given: Mapping[str, Any]) -> dict[str, Any]:
        schema = given.get("schema")
        content = given.get("content")
        if schema is None and isinstance(content, Mapping) and content:
            media = next(iter(content.values()))
            schema = media.get("schema") if isinstance(media, Mapping) else None
        read = self._schemas.read(schema or {})
        if isinstance(given.get("description"), str) and given["description"]:
            read["description"] = given["description"][:1024]
        return read

    def _path_style(self, given: Mapping[str, Any]) -> Style:
        style = given.get("style", "simple")
        if style != "simple":
            raise Unsupported(f"its path parameter has the style {str(style)[:32]!r}")
        return "json" if given.get("content") else "comma"

    def _query_style(self, given: Mapping[str, Any]) -> Style:
        if given.get("content"):
            return "json"
        style = str(given.get("style", "form"))
        if style in _QUERY_STYLES:
            return _QUERY_STYLES[style]
        if given.get("explode", True) is False:
            return "comma"
        followed = self._references.follow(given.get("schema"))
        is_object = isinstance(followed, Mapping) and followed.get("type") == "object"
        return "spread" if is_object else "repeat"

    def _add(
        self, name: str, position: Position, schema: Mapping[str, Any], required: bool,
        style: Style, *, is_body: bool = False,
    ) -> None:  # fmt: skip
        argument = _NOT_IN_PARAMETERS.sub("_", name).strip("_")[:_MAX_NAME] or position
        taken = {each.name for each in self.parameters}
        if argument in taken:
            argument = f"{position}_{argument}"[:_MAX_NAME]
        number = 2
        while argument in taken:
            argument, number = f"{argument[: _MAX_NAME - 4]}_{number}", number + 1
        wire = "" if argument == name or is_body else name
        text = json.dumps(schema, ensure_ascii=False)
        self.parameters.append(
            HttpParameter(argument, position, text, required, wire, style, is_body)
        )


def _body_kind(content: Mapping[str, Any]) -> tuple[str, Body]:
    """Return the media type to send, and the encoding of the body."""
    kinds = {str(kind).partition(";")[0].strip().lower(): str(kind) for kind in content}
    for kind in (*_JSONS, *(each for each in kinds if each.endswith("+json"))):
        if kind in kinds:
            return kinds[kind], "json"
    for kind, body in _FORMS.items():
        if kind in kinds:
            return kinds[kind], body
    for kind, written in kinds.items():
        if kind.startswith("text/") or kind.endswith(("/xml", "+xml", "/yaml", "/x-ndjson")):
            return written, "text"
    first, media = next(iter(content.items()))
    schema = media.get("schema") if isinstance(media, Mapping) else None
    if str(first) in _ANY_TYPE and isinstance(schema, Mapping) and not holds_bytes(schema):
        return str(first), "json"  # any type, with a schema of a value: send JSON
    return str(first), "binary"


_JSONS: Final = ("application/json", "application/merge-patch+json")
"""Preferred over other JSON types; a merge patch is a plain object."""
_ANY_TYPE: Final = ("*/*", "application/*")


_FORMS: Final[Mapping[str, Body]] = {
    "multipart/form-data": "multipart",
    "application/x-www-form-urlencoded": "form",
}


def _description(summary: str, operation: Mapping[str, Any]) -> str:
    text = str(operation.get("description") or "").strip()
    if summary and text != summary:
        text = f"{summary}\n\n{text}" if text else summary
    if operation.get("deprecated") is True:
        text = f"Deprecated. {text}"
    if len(text) > _MAX_DESCRIPTION:
        text = f"{text[: _MAX_DESCRIPTION - 1]}…"
    return text


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
