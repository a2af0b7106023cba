"""Converts operations of an OpenAPI document to HTTP tools, or reports why it can't."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from leaseway.control_plane.config.openapi.names import numbered, operation_name
from leaseway.control_plane.config.openapi.objects import Objects
from leaseway.control_plane.config.openapi.parameters import Parameters, optional
from leaseway.control_plane.config.openapi.references import References, Unsupported, list_of
from leaseway.control_plane.config.openapi.schemas import SchemaReader
from leaseway.control_plane.config.openapi.security import (
    Scheme,
    asked_for,
    is_authorization,
    of_authorization,
    schemes,
    with_authorization,
)
from leaseway.control_plane.config.openapi.servers import ServerReader
from leaseway.control_plane.config.openapi.swagger import convert_swagger
from leaseway.spec.kinds.http_tools import (
    BODILESS_METHODS,
    MAX_PARAMETERS,
    MAX_TOOLS,
    METHODS,
    READ_METHODS,
    Body,
    HttpTool,
    ToolFault,
    find_faults,
    placeholders,
)

_MAX_DESCRIPTION: Final = 2_048
_OF_EMPTY: Final = {"type", "properties", "additionalProperties", "description", "title"}
_MAX_TITLE: Final = 128
_MAX_METHOD: Final = 32
_QUERY_TEMPLATE: Final = re.compile(r"\{[?&][^{}]*\}")
_RARELY_WITH_BODY: Final = (*READ_METHODS, "DELETE")
_OTHER_METHODS: Final = ("TRACE",)
"""Methods that OpenAPI knows and no tool has."""


class BadDocument(Exception):
    """A document that is neither OpenAPI 3 nor Swagger 2; the message is a sentence."""


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

    Attributes:
        base_url: The address of its server; may be empty.
        tools: The tools; one more than `MAX_TOOLS` if there are too many. Their `security` has
            names of schemes.
        skipped: The chosen operations that can't become tools.
        notes: What the tools can't send of their operations, as sentences.
        schemes: Its security schemes by name.
    """

    title: str
    base_url: str
    tools: tuple[HttpTool, ...]
    skipped: tuple[SkippedOperation, ...]
    notes: tuple[str, ...]
    schemes: Mapping[str, Scheme]


def import_document(
    document: object,
    selection: OperationSelection = OperationSelection(),
    address: str = "",
) -> Imported:
    """Return a document's tools.

    Args:
        document: The parsed document.
        address: Where it was fetched, for servers relative to it; empty for a file.

    Raises:
        BadDocument: It is neither OpenAPI 3 nor Swagger 2.
    """
    if not isinstance(document, Mapping):
        raise BadDocument("It is not an OpenAPI document: it must be a mapping.")
    document = _with_paths(document)
    if str(document.get("swagger", "")).startswith("2."):
        document = convert_swagger(document)
    version = str(document.get("openapi", ""))
    if version != "3" and not version.startswith(("3.0", "3.1", "3.2")):
        found = f"OpenAPI {version[:16]}" if version else "no version of OpenAPI"
        if "swagger" in document:
            found = f"Swagger {str(document['swagger'])[:16]}"
        raise BadDocument(
            f"It has {found}, but OpenAPI 3 or Swagger 2 is needed. Convert it first."
        )
    if not isinstance(document.get("paths", {}), Mapping):
        raise BadDocument("Its 'paths' is not a mapping.")
    return _Importer(document, selection, address).result()


def _with_paths(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document whose `paths` are no reference to them.

    Raises:
        BadDocument: The reference has no target.
    """
    paths = document.get("paths")
    if not isinstance(paths, Mapping) or "$ref" not in paths:
        return document
    try:
        return {**document, "paths": References(document).follow(paths)}
    except Unsupported as error:
        raise BadDocument(f"Its 'paths' can't be read: {error}.") from None


class _Importer:
    def __init__(
        self, document: Mapping[str, Any], selection: OperationSelection, address: str
    ) -> None:
        self._document = document
        self._selection = selection
        self._references = References(document)
        self._of_schemas = References(document, lenient=True)
        self._objects = Objects(self._of_schemas)
        self._schemas = SchemaReader(self._of_schemas, self._objects)
        self._servers = ServerReader(document, document.get("paths", {}).values(), address)
        self._tools: list[tuple[tuple[str, str], HttpTool]] = []  # with path and method
        self._skipped: list[SkippedOperation] = []
        self._notes: list[str] = []
        self._schemes = schemes(document, self._references)
        self._needs_authorization = False

    def result(self) -> Imported:
        for method, path, item, operation in self._operations():
            if len(self._tools) > MAX_TOOLS:
                break
            self._add(method, path, item, operation)
        info = self._document.get("info")
        title = info.get("title", "") if isinstance(info, Mapping) else ""
        found = self._schemes
        return Imported(
            title=str(title)[:256],
            base_url=self._servers.base_url,
            tools=numbered(self._tools),
            skipped=tuple(self._skipped),
            notes=(
                *self._notes,
                *map(_of_missing, self._of_schemas.missing),
                *map(_of_unsearched, self._objects.unsearched),
            ),
            schemes=with_authorization(found) if self._needs_authorization else found,
        )

    def _operations(self) -> Iterator[tuple[str, str, Mapping[str, Any], Any]]:
        for path, given in self._document.get("paths", {}).items():
            if not str(path).startswith("/"):
                if not str(path).startswith("x-"):
                    text = "its path does not begin with '/'"
                    self._skipped.append(SkippedOperation(str(path)[:256], text))
                continue
            try:
                item = self._references.follow(given)
            except Unsupported as error:
                self._skipped.append(SkippedOperation(str(path), str(error)))
                continue
            if not isinstance(item, Mapping):
                self._skipped.append(SkippedOperation(str(path), "it is not a mapping"))
                continue
            more = item.get("additionalOperations")
            more = more if isinstance(more, Mapping) else {}
            for method in (*METHODS, *_OTHER_METHODS):
                operation = item.get(method.lower())
                if operation is not None:
                    yield method, str(path), item, operation
            for name, operation in more.items():
                yield str(name)[:_MAX_METHOD], str(path), item, operation

    def _add(self, method: str, path: str, item: Mapping[str, Any], operation: Any) -> None:
        label = f"{method} {path[:256]}"
        if not isinstance(operation, Mapping):
            self._skipped.append(SkippedOperation(label, "it is not a mapping"))
            return
        identity = str(operation.get("operationId") or f"{method.lower()}{path}")
        tags = [str(tag) for tag in list_of(operation.get("tags"))]
        if not self._selection.includes(identity, tags, path):
            return
        notes: list[str] = []
        try:
            made = self._tool(method, path, item, operation, identity, notes)
        except Unsupported as error:
            self._skipped.append(SkippedOperation(label, str(error)))
            return
        tool, fault = _without_faulty_parameters(made, notes)
        if fault is not None:
            self._skipped.append(SkippedOperation(label, f"it {fault.message}"))
            return
        self._tools.append(((path, method), tool))
        self._notes += [f"The tool of {label} can't send {note}." for note in notes]

    def _tool(
        self, method: str, path: str, item: Mapping[str, Any], operation: Mapping[str, Any],
        identity: str, notes: list[str],
    ) -> HttpTool:  # fmt: skip
        if method not in METHODS:
            raise Unsupported(f"the method {method} is not supported")
        base_url = self._servers.own(operation, item)
        parameters = Parameters(self._of_schemas, self._schemas, self._objects)
        security = asked_for(
            operation.get("security", self._document.get("security")), self._schemes
        )
        declared = self._declared(item, operation, notes)
        path = _with_placeholders(path, [name for name, place in declared if place == "path"])
        for given in _with_undeclared(path, declared):
            if is_authorization(given):
                self._needs_authorization = True
                if security is not None:
                    security += of_authorization(with_authorization(self._schemes))
            try:
                parameters.add(given)
            except Unsupported as error:
                if given.get("required") is True or given.get("in") == "path":
                    raise
                notes.append(optional(str(given["name"]), error))
        body, content_type = self._add_body(method, operation, parameters, notes)
        if len(parameters.parameters) > MAX_PARAMETERS:
            raise Unsupported(f"it has more than {MAX_PARAMETERS} parameters")
        notes += parameters.notes
        parameters.fit()
        summary = str(operation.get("summary") or "").strip()
        return HttpTool(
            name=operation_name(identity),
            method=method,
            endpoint=_endpoint(path),
            description=_description(
                summary, operation, parameters.about, f"{method} {path[:_MAX_TITLE]}"
            ),
            title=summary[:_MAX_TITLE],
            parameters=tuple(parameters.parameters),
            body=body,
            content_type=content_type,
            security=security,
            base_url=base_url,
        )

    def _add_body(
        self, method: str, operation: Mapping[str, Any], parameters: Parameters, notes: list[str]
    ) -> tuple[Body, str]:
        """Add an operation's body; return its encoding and content type."""
        given = self._references.follow(operation.get("requestBody"))
        content = given.get("content") if isinstance(given, Mapping) else None
        if not content:
            return "json", ""
        is_required = given.get("required") is True
        if method in _RARELY_WITH_BODY and not is_required and self._is_empty(content):
            return "json", ""  # some documents give each operation one
        if method not in BODILESS_METHODS:
            return parameters.add_body(given, method)
        if is_required:
            raise Unsupported(f"it needs a body, but {method} has none")
        notes.append(f"its optional body: {method} has none")
        return "json", ""

    def _is_empty(self, content: Any) -> bool:
        """Return whether a body is an object without members in each of its media types."""
        medias = list(content.values()) if isinstance(content, Mapping) else [None]
        schemas: list[Any] = [
            media.get("schema") if isinstance(media, Mapping) else {} for media in medias
        ]
        return all(
            isinstance(schema, Mapping)
            and schema.get("properties") == {}
            and not schema.get("additionalProperties")
            and not schema.keys() - _OF_EMPTY
            for schema in map(self._of_schemas.follow, schemas)
        )

    def _declared(
        self, item: Mapping[str, Any], operation: Mapping[str, Any], notes: list[str]
    ) -> dict[tuple[str, str], Mapping[str, Any]]:
        """Return the parameters of an operation's path, overridden and followed by its own.

        They are by name and place.
        """
        merged: dict[tuple[str, str], Mapping[str, Any]] = {}
        for given in (*list_of(item.get("parameters")), *list_of(operation.get("parameters"))):
            parameter = self._references.follow(given)
            if not isinstance(parameter, Mapping) or not parameter.get("name"):
                if isinstance(parameter, Mapping) and parameter.get("required") is True:
                    raise Unsupported("one of its parameters has no name")
                notes.append("its optional parameter without a name")
                continue
            name, place = str(parameter["name"]), str(parameter.get("in"))
            # Frameworks tell a header twice: as it is read, and as it is documented.
            merged[name.lower() if place == "header" else name, place] = parameter
        return merged


def _with_placeholders(path: str, names: Iterable[str]) -> str:
    """Return a path with the placeholders of its parameters, as OpenAPI writes them.

    Some documents have them as a framework's routes: `:id`, `{id:[0-9]+}`, `{*id}`, or in another
    case, and the query as in RFC 6570, `{?page}`.
    """
    path = _QUERY_TEMPLATE.sub("", path)
    for name in names:
        if name not in placeholders(path):
            told = re.escape(name)
            route = rf"\{{[*+]?{told}(?:[*+?]|:[^{{}}]*)?\}}|(?<=/):{told}(?=/|$)"
            placeholder = f"{{{name}}}".replace("\\", r"\\")
            path = re.sub(route, placeholder, path, flags=re.IGNORECASE)
    return path


def _with_undeclared(
    path: str, declared: Mapping[tuple[str, str], Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the parameters of an operation, also those that only its path has.

    A placeholder that the document says nothing of is a text: the path needs something there.
    """
    merged = dict(declared)
    for name in placeholders(path):
        merged.setdefault((name, "path"), _text_in_path(name))
    for key, name in _pairs_of_query(path).items():
        given = merged.pop((name, "path"), _text_in_path(name))
        value = {**given, "name": key, "in": "query"}
        value.pop("style", None)
        merged.setdefault((key, "query"), value)
    return list(merged.values())


def _pairs_of_query(path: str) -> dict[str, str]:
    """Return the names in a path's query whose values are placeholders alone, with these."""
    before, _, query = path.partition("?")
    found: dict[str, str] = {}
    for key, _, value in (pair.partition("=") for pair in query.split("&")):
        names = placeholders(value)
        if len(names) == 1 and value == f"{{{names[0]}}}" and names[0] not in placeholders(before):
            found[key] = names[0]
    return found


def _endpoint(path: str) -> str:
    """Return what is sent of a path, without the pairs of its query that are parameters."""
    path = path.partition("#")[0]  # it only tells operations of one path apart
    pairs = _pairs_of_query(path)
    before, _, query = path.partition("?")
    fixed = "&".join(pair for pair in query.split("&") if pair.partition("=")[0] not in pairs)
    return f"{before}?{fixed}" if fixed else before


def _text_in_path(name: str) -> Mapping[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _without_faulty_parameters(
    tool: HttpTool, notes: list[str]
) -> tuple[HttpTool, ToolFault | None]:
    """Return a tool without its optional parameters that are faulty, and its next fault."""
    while True:
        faults = list(find_faults(tool))
        faulty: dict[int, ToolFault] = {}
        for fault in faults:
            if fault.parameter is not None and not tool.parameters[fault.parameter].required:
                faulty.setdefault(fault.parameter, fault)
        if not faulty:
            return tool, next(iter(faults), None)
        for number, fault in faulty.items():
            name = tool.parameters[number].name
            notes.append(f"its optional parameter {name[:64]!r}: it {fault.message}")
        kept = (
            parameter for number, parameter in enumerate(tool.parameters) if number not in faulty
        )
        tool = replace(tool, parameters=tuple(kept))


def _of_missing(reason: str) -> str:
    return f"A schema accepts anything in one place: {reason}."


def _of_unsearched(reason: str) -> str:
    return f"Subtypes of schemas may be missing: none are looked for in {reason}."


def _description(summary: str, operation: Mapping[str, Any], about: list[str], request: str) -> str:
    """Return what a tool does: by the document, or else the request that it makes."""
    text = str(operation.get("description") or "").strip()
    if text == summary:
        text = ""
    told = [part for part in (summary, text) if part] or [request]
    text = "\n\n".join([*told, *about])
    if operation.get("deprecated") is True:
        text = f"Deprecated. {text}"
    if len(text) > _MAX_DESCRIPTION:
        text = f"{text[: _MAX_DESCRIPTION - 1]}…"
    return text
