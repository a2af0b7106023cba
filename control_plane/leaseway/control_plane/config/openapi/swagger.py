"""Converts Swagger 2 documents to OpenAPI 3. Pure.

Schemas stay where they are, so references to them stay as well. What the converted document does
not need, such as responses, is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from leaseway.control_plane.config.openapi.media import FORM, FORM_DATA
from leaseway.control_plane.config.openapi.references import References, Unsupported, list_of

_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_NOT_IN_SCHEMAS: Final = frozenset(
    ("name", "in", "required", "description", "collectionFormat", "allowEmptyValue", "schema")
)
_STYLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "csv": {"explode": False},
    "ssv": {"style": "spaceDelimited"},
    "pipes": {"style": "pipeDelimited"},
    "multi": {"explode": True},
}


def convert_swagger(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Swagger 2 document as OpenAPI 3."""
    references = References(document)
    paths = document.get("paths", {})
    converted = {key: value for key, value in document.items() if key != "swagger"}
    converted |= {
        "openapi": "3.0.3",
        "servers": _servers(document, document.get("schemes")),
        "components": {"securitySchemes": _security(document)},
    }
    if isinstance(paths, Mapping):
        converted["paths"] = {
            path: _item(item, document, references) for path, item in paths.items()
        }
    return converted


def _servers(document: Mapping[str, Any], schemes: Any) -> list[dict[str, Any]]:
    """Return the address of host and base path, https first; without a host only the path.

    Some write the host with a scheme, or the path without a slash: it would name another host.
    """
    host, base = document.get("host"), f"/{str(document.get('basePath') or '').lstrip('/')}"
    if not isinstance(host, str) or not host:
        return [{"url": base}]
    listed = [scheme for scheme in list_of(schemes) if scheme in ("https", "http")] or ["https"]
    host = host.rpartition("://")[2].rstrip("/")
    return [{"url": f"{scheme}://{host}{base}"} for scheme in sorted(listed, reverse=True)]


def _security(document: Mapping[str, Any]) -> dict[str, Any]:
    given = document.get("securityDefinitions")
    found: dict[str, Any] = {}
    for name, scheme in given.items() if isinstance(given, Mapping) else ():
        is_basic = isinstance(scheme, Mapping) and scheme.get("type") == "basic"
        found[name] = {"type": "http", "scheme": "basic"} if is_basic else scheme
    return found


def _item(item: Any, document: Mapping[str, Any], references: References) -> Any:
    try:
        followed = references.follow(item)
    except Unsupported:
        return item  # the importer says why
    if not isinstance(followed, Mapping):
        return followed
    shared = list_of(followed.get("parameters"))
    converted = {key: value for key, value in followed.items() if key != "parameters"}
    for method in _METHODS:
        operation = followed.get(method)
        if isinstance(operation, Mapping):
            converted[method] = _operation(operation, shared, document, references)
    return converted


def _operation(
    operation: Mapping[str, Any],
    shared: list[Any],
    document: Mapping[str, Any],
    references: References,
) -> dict[str, Any]:
    converted = dict(operation)
    if "schemes" in operation and operation["schemes"] != document.get("schemes"):
        converted["servers"] = _servers(document, operation["schemes"])
    parameters: dict[Any, Any] = {}
    for given in (*shared, *list_of(operation.get("parameters"))):
        try:
            followed = references.follow(given)
        except Unsupported:
            followed = given
        if isinstance(followed, Mapping):
            key = (str(followed.get("name")), str(followed.get("in")))
            parameters[("", "body") if key[1] == "body" else key] = followed
        else:
            parameters[len(parameters)] = followed
    kept: list[Any] = []
    fields: list[Mapping[str, Any]] = []
    consumes = list(map(str, list_of(operation.get("consumes", document.get("consumes")))))
    for parameter in parameters.values():
        place = parameter.get("in") if isinstance(parameter, Mapping) else None
        if place == "body":
            converted["requestBody"] = _body(parameter, consumes)
        elif place == "formData":
            fields.append(parameter)
        else:
            kept.append(_parameter(parameter) if place else parameter)
    if fields:
        converted["requestBody"] = _form(fields, consumes)
    converted["parameters"] = kept
    return converted


def _parameter(given: Mapping[str, Any]) -> dict[str, Any]:
    converted = {
        key: given[key] for key in ("name", "in", "required", "description") if key in given
    }
    return converted | {"schema": _schema(given), **_style(given)}


def _schema(given: Mapping[str, Any]) -> dict[str, Any]:
    schema = {key: value for key, value in given.items() if key not in _NOT_IN_SCHEMAS}
    return schema | ({"type": "string", "format": "binary"} if given.get("type") == "file" else {})


def _style(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the style of a list; one that has no counterpart is named, so that it is refused."""
    if given.get("type") != "array":
        return {}
    written = str(given.get("collectionFormat", "csv"))
    style = dict(_STYLES.get(written, {"style": written}))
    return {} if written == "csv" and given.get("in") in ("path", "header") else style


def _body(given: Mapping[str, Any], consumes: list[str]) -> dict[str, Any]:
    media = {"schema": given.get("schema", {})}
    return {
        "description": given.get("description", ""),
        "required": given.get("required") is True,
        "content": dict.fromkeys(consumes or ["application/json"], media),
    }


def _form(fields: list[Mapping[str, Any]], consumes: list[str]) -> dict[str, Any]:
    """Return the body that has the fields of a form."""
    has_file = any(field.get("type") == "file" for field in fields)
    kind = FORM_DATA if has_file or (FORM not in consumes and FORM_DATA in consumes) else FORM
    members = {str(field.get("name")): field for field in fields}
    schema = {
        "type": "object",
        "properties": dict(_described(members)),
        "required": [name for name, member in members.items() if member.get("required") is True],
    }
    encoding = {name: style for name, member in members.items() if (style := _style(member))}
    return {
        "required": bool(schema["required"]),
        "content": {kind: {"schema": schema, "encoding": encoding}},
    }


def _described(members: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, member in members.items():
        description = member.get("description")
        yield name, _schema(member) | ({"description": description} if description else {})
