"""Converts the parameters and the body of an operation to the parameters of a tool."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from leaseway.control_plane.config.openapi.media import (
    FORM,
    BodyType,
    choose_body,
    essence,
    examples_of,
    has_names,
    part_type,
    sent_type,
)
from leaseway.control_plane.config.openapi.objects import Objects
from leaseway.control_plane.config.openapi.references import References, Unsupported, types_of
from leaseway.control_plane.config.openapi.schemas import MAX_SCHEMAS, SchemaReader, is_text
from leaseway.control_plane.config.openapi.usable import schema_fault
from leaseway.spec.kinds.http_tools import (
    JOINED_STYLES,
    RESERVED_HEADERS,
    Body,
    HttpParameter,
    Position,
    Style,
    holds_bytes,
)
from leaseway.wire.listing.model_schemas import MAX_ARGUMENT_NAME, argument_name

_MAX_MEMBERS: Final = 100
_MAX_TEXT: Final = 1_024
_MAX_NAME: Final = 128
_MAX_DOCUMENT: Final = 4_096
"""Characters of what a description says of the content of a document, and of an example of it."""
_IGNORED_HEADERS: Final = RESERVED_HEADERS | {"accept", "content-type", "authorization"}
_DELIMITED: Final[Mapping[str, Style]] = {"spaceDelimited": "space", "pipeDelimited": "pipe"}
_HEADER_STYLES: Final[Mapping[str, Style]] = {"simple": "comma", **_DELIMITED}
_OF_LISTS: Final[Mapping[Style, Style]] = {"spread": "repeat"}
_OF_OBJECTS: Final[Mapping[Style, Style]] = {"repeat": "json"}
"""What a style writes lists or objects like, where it writes them like another one."""
_PATH_STYLES: Final[Mapping[str, Style]] = {
    "label": "label",
    "matrix": "matrix",
    **_HEADER_STYLES,
}


class Parameters:
    """The parameters of one operation, with unique names.

    Attributes:
        notes: The optional parts of the operation that can't be sent, each as the end of a
            sentence.
        about: What the document says of parameters that became several, as sentences.
    """

    def __init__(self, references: References, schemas: SchemaReader, objects: Objects) -> None:
        self._references = references
        self._schemas = schemas
        self._objects = objects
        self.parameters: list[HttpParameter] = []
        self.notes: list[str] = []
        self.about: list[str] = []

    def add(self, given: Mapping[str, Any]) -> None:
        """Add a parameter of an operation.

        Raises:
            Unsupported: It can't be sent.
        """
        name, place = str(given["name"]), given.get("in")
        required = given.get("required") is True
        explode = given.get("explode") is True
        if place == "header" and name.lower() in _IGNORED_HEADERS:
            return  # bodies, security and HTTP itself set these headers
        schema = self._schema(given)
        if place == "path":
            default = self._schemas.default_of(given.get("schema"))
            with_default = {**schema, "default": default}
            if default is not None and not schema_fault(json.dumps(with_default)):
                # Something must stand in the path, so this default alone is sent.
                schema = with_default
            style = self._simple_style(given, _PATH_STYLES)
            self._add(name, "path", schema, True, style, explode=explode)
        elif place == "query":
            style = _content_style(given) or self._query_style(
                given.get("schema"), given.get("style"), given.get("explode")
            )
            reserved = given.get("allowReserved") is True
            self._add(name, "query", schema, required, style, allow_reserved=reserved)
        elif place == "querystring":
            self._add_query(name, given, required)
        elif place == "header":
            style = self._simple_style(given, _HEADER_STYLES)
            self._add(name, "header", schema, required, style, explode=explode)
        elif place == "cookie":
            self._add(name, "cookie", schema, required, self._cookie_style(given))
        else:
            raise Unsupported(f"its parameter {name[:64]!r} is in {str(place)[:32]!r}")

    def add_body(self, given: Mapping[str, Any], method: str) -> tuple[Body, str]:
        """Add an operation's body; return its encoding and content type.

        The type is empty if the encoding, or the parameter's schema, determines it.

        Args:
            given: The body.
            method: That of the operation. A GET has no body if no member of it is given, so that
                one which is required is a parameter as a whole.

        Raises:
            Unsupported: It can't be sent.
        """
        content = given["content"]
        if not isinstance(content, Mapping):
            raise Unsupported("its body's 'content' is not a mapping")
        chosen = choose_body(
            {kind: self._references.follow(media) for kind, media in content.items()}
        )
        if chosen.body == "lines" and not self._schemas.accepts(chosen.schema, "array"):
            chosen = replace(chosen, body="text")  # its schema is of one line, or of the text
        required = given.get("required") is True
        text = given.get("description")
        description = text[:_MAX_TEXT] if isinstance(text, str) else ""
        if chosen.body in ("binary", "text"):
            self._add_raw(chosen, required, description)
        else:
            is_whole = required and method == "GET"
            self._add_values(chosen, required, description, is_whole=is_whole)
        return chosen.body, sent_type(chosen)

    def _add_query(self, name: str, given: Mapping[str, Any], required: bool) -> None:
        """Add a parameter that is the whole query: the fields of a form, or one text."""
        content = given.get("content")
        content = content if isinstance(content, Mapping) and content else {FORM: {}}
        kind = next(iter(content))
        chosen = choose_body({kind: self._references.follow(content[kind])})
        if chosen.body != "form":
            self._add(name, "query", self._schema(given), required, "bare")
            return
        members = self._objects.object_of(chosen.schema)
        if members is None or len(members["properties"]) > _MAX_MEMBERS:
            read = self._schema(given)
            self._add(name, "query", read, required, "spread")
            self._note_encodings(read, chosen, "repeat")
            return
        self._add_members(members, required, chosen, "query")
        text = given.get("description")
        if isinstance(text, str) and text.strip():
            self.about.append(f"Its query: {text.strip()[:_MAX_TEXT]}")

    def fit(self) -> None:
        """Leave the largest schemas open in their depths until all are within `MAX_SCHEMAS`."""
        limit = _largest_share(len(parameter.schema) for parameter in self.parameters)
        for number, parameter in enumerate(self.parameters):
            if len(parameter.schema) > limit:
                cut = self._schemas.cut(parameter.parsed, limit)
                text = json.dumps(cut, ensure_ascii=False)
                self.parameters[number] = replace(parameter, schema=text)

    def _add_raw(self, chosen: BodyType, required: bool, description: str) -> None:
        is_xml = essence(chosen.kind).endswith("xml")
        read = self._schemas.read(chosen.schema, xml=is_xml)
        description = read.get("description") or description
        if chosen.body == "binary" or "string" not in types_of(read):
            kept = ("title", "examples")
            rules = {key: read[key] for key in read if key not in (*kept, "description")}
            read = {key: read[key] for key in kept if key in read}
            root = self._schemas.root_of(chosen.schema) if is_xml and rules else ""
            if root:
                description = f"{description} The root element is {root[:_MAX_NAME]}.".strip()
            if chosen.body == "text":
                description = _with_rules(description, rules)
        elif is_xml:
            read = self._schemas.read(chosen.schema)  # without `xml`, which only rules tell
        read["type"] = "string"
        if chosen.body == "binary":
            read["contentEncoding"] = "base64"
            description = description or "The body, as base64."
        if description:
            read["description"] = description
        examples = [text for text in chosen.examples if isinstance(text, str)]
        if chosen.body == "text" and examples and len(examples[0]) <= _MAX_DOCUMENT:
            read["examples"] = examples[:1]
        if "*" not in chosen.kind:
            read["contentMediaType"] = chosen.kind.partition(";")[0].strip()
        self._add("body", "body", read, required, "json", is_body=True)

    def _add_values(
        self, chosen: BodyType, required: bool, description: str, *, is_whole: bool = False
    ) -> None:
        members = None
        if chosen.body != "lines":  # a line is no member, whatever else the schema accepts
            members = self._objects.object_of(chosen.schema, lenient=chosen.body == "multipart")
        if is_whole and members is not None and not members["required"]:
            members = None
        if members is not None and len(members["properties"]) <= _MAX_MEMBERS:
            self._add_members(members, required, chosen)
            return
        is_multipart = chosen.body == "multipart"
        read = self._schemas.read(chosen.schema, files=is_multipart)
        if is_multipart and has_names(chosen):
            of_parts = self._of_parts(read, chosen.encoding)
            read = of_parts if "properties" in read else _any_fields(read, description)
        elif is_multipart and not self._schemas.accepts(chosen.schema, "array"):
            raise Unsupported("its multipart body is neither an object nor a list")
        if chosen.item_encoding and "items" in read:
            items = self._references.follow(chosen.schema).get("items")
            read["items"], _ = self._part(items, chosen.item_encoding)
        if description and "description" not in read:
            read["description"] = description
        is_deep = any(_style_of(encoding) == "deepObject" for encoding in chosen.encoding.values())
        style: Style = "json" if chosen.body == "json" else "deep" if is_deep else "repeat"
        self._add("body", "body", read, required, style, is_body=True)
        if chosen.body in ("form", "multipart") and has_names(chosen):
            self._note_encodings(read, chosen, "deep" if is_deep else "repeat")

    def _note_encodings(self, read: Mapping[str, Any], chosen: BodyType, style: Style) -> None:
        """Note each field that a form which is one parameter does not send as it should be.

        Args:
            read: The schema of the form.
            chosen: Its type, with the encodings of the fields.
            style: How the form writes all of its fields.
        """
        fields = read.get("properties", {})
        followed = self._references.follow(chosen.schema)
        written = followed.get("properties") if isinstance(followed, Mapping) else None
        written = written if isinstance(written, Mapping) else {}
        for number, (name, encoding) in enumerate(chosen.encoding.items()):
            if number == _MAX_MEMBERS:
                about = f"more than {_MAX_MEMBERS} fields as their 'encoding' says"
                self.notes.append(f"{about}: the form is one parameter")
                break
            if not isinstance(encoding, Mapping) or self._schemas.is_read_only(written.get(name)):
                continue
            try:
                _, own, reserved = self._member(fields.get(name, {}), encoding, chosen.body)
                is_kept = not reserved and _writes_alike(
                    fields.get(name, {}), own, style, is_multipart=chosen.body == "multipart"
                )
            except Unsupported:
                is_kept = False
            is_untyped = chosen.body == "multipart" and name not in fields and part_type(encoding)
            if is_untyped or not is_kept:
                about = f"its field {str(name)[:64]!r} as its 'encoding' says"
                self.notes.append(f"{about}: the form is one parameter")

    def _of_parts(self, read: Mapping[str, Any], encodings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the schema of a whole form whose parts have their media types."""
        parts = dict(read.get("properties", {}))
        for name, encoding in encodings.items():
            if name in parts and isinstance(encoding, Mapping):
                kind = {key: encoding[key] for key in ("contentType",) if key in encoding}
                parts[name], _ = self._part(parts[name], kind)
        return {**read, "properties": parts}

    def _add_members(
        self, members: Mapping[str, Any], required: bool, chosen: BodyType,
        position: Position = "body",
    ) -> None:  # fmt: skip
        """Add the members of a body, or of a query in its form; an optional one may be left out.

        Raises:
            Unsupported: One that the others need can't be sent; none is added.
        """
        made: list[tuple[str, dict[str, Any], Style, bool]] = []
        notes: list[str] = []
        for name, schema in members["properties"].items():
            if self._schemas.is_read_only(schema):
                continue
            encoding = chosen.encoding.get(name)
            encoding = encoding if isinstance(encoding, Mapping) else {}
            try:
                made.append((name, *self._member(schema, encoding, chosen.body)))
            except Unsupported as error:
                if name in members["required"]:
                    raise
                notes.append(optional(name, error))
        self.notes += notes
        for name, read, style, reserved in made:
            is_needed = name in members["required"]
            if is_needed and not required:  # many documents forget to say that a body is required
                about = f"Required if anything of the {position} is sent."
                read = {**read, "description": f"{read.get('description', '')} {about}".lstrip()}
            self._add(name, position, read, is_needed and required, style, allow_reserved=reserved)

    def _member(
        self, schema: Any, encoding: Mapping[str, Any], body: Body
    ) -> tuple[dict[str, Any], Style, bool]:
        """Return the schema and the style of a member, and whether reserved characters stay."""
        match body:
            case "form":
                reserved = encoding.get("allowReserved") is True
                return self._schemas.read(schema), self._form_style(schema, encoding), reserved
            case "multipart":
                return *self._part(schema, encoding), False
            case _:
                return self._schemas.read(schema), "json", False

    def _form_style(self, schema: Any, encoding: Mapping[str, Any]) -> Style:
        if not {"style", "explode"} & encoding.keys():
            # Without a style, OpenAPI repeats lists and writes objects as JSON.
            is_json = str(encoding.get("contentType", "")).endswith("json")
            return "json" if is_json and not self._schemas.accepts(schema, "string") else "repeat"
        return self._query_style(schema, encoding.get("style"), encoding.get("explode"))

    def _part(self, schema: Any, encoding: Mapping[str, Any]) -> tuple[dict[str, Any], Style]:
        """Return the schema and the style of a part of a multipart body."""
        kind = part_type(encoding)
        followed = self._references.follow(schema)
        is_text_or_any = isinstance(followed, Mapping) and (
            not {"type", "properties", "allOf", "anyOf", "oneOf", "enum"} & followed.keys()
            or followed.get("type") == "string"
        )
        if is_text(kind) and not kind.endswith("json") and self._schemas.accepts(schema, "object"):
            kept = ("title", "description")  # no rules of a text
            followed = {key: followed[key] for key in kept if key in followed}
            is_text_or_any = True
        if kind and is_text_or_any and "contentEncoding" not in followed:
            schema = {**followed, "type": "string", "contentMediaType": kind}
        read = self._schemas.read(schema, files=True)
        if kind and not kind.endswith("json"):
            read.setdefault("contentMediaType", kind)
        style: Style = "repeat"
        if {"style", "explode"} & encoding.keys():
            style = self._query_style(schema, encoding.get("style"), encoding.get("explode"))
        return read, style

    def _schema(self, given: Mapping[str, Any]) -> dict[str, Any]:
        schema = given.get("schema")
        content = given.get("content")
        if schema is None and isinstance(content, Mapping) and content:
            media = self._references.follow(next(iter(content.values())))
            media = media if isinstance(media, Mapping) else {}
            schema = media.get("schema")
            given = {**media, **given}  # either has examples
        text = given.get("description")
        notes: dict[str, Any] = {}
        if isinstance(text, str) and text:
            notes["description"] = text
        if given.get("deprecated") is True:
            notes["deprecated"] = True
        examples = examples_of(given)
        if examples:
            notes["examples"] = examples
        if notes:
            schema = {**(schema if isinstance(schema, Mapping) else {}), **notes}
        return self._schemas.read(schema or {})

    def _simple_style(self, given: Mapping[str, Any], styles: Mapping[str, Style]) -> Style:
        written = str(given.get("style", "simple"))
        style = _content_style(given) or styles.get(written)
        if style is None:
            place = given.get("in")
            raise Unsupported(f"its {place} parameter has the style {written[:32]!r}")
        return style

    def _cookie_style(self, given: Mapping[str, Any]) -> Style:
        written = given.get("style", "form")
        if written not in ("form", "cookie"):
            raise Unsupported(f"its cookie parameter has the style {str(written)[:32]!r}")
        style = _content_style(given)
        schema = given.get("schema")
        if style is None and given.get("explode") is not False:
            for kind in ("array", "object"):
                if self._schemas.accepts(schema, kind):
                    raise Unsupported(
                        f"its cookie parameter is an {kind}, which 'explode' writes as several"
                        " cookies"
                    )
        return style or "comma"

    def _query_style(self, schema: Any, style: Any, explode: Any) -> Style:
        """Return the style for one of OpenAPI's, of a parameter or a member of a form."""
        if style == "deepObject":
            return "deep"
        if isinstance(style, str) and style in _DELIMITED:
            return "repeat" if explode is True else _DELIMITED[style]
        if style not in (None, "form"):
            raise Unsupported(f"one of its parameters has the style {str(style)[:32]!r}")
        if explode is False:
            return "comma"
        return "spread" if self._schemas.accepts(schema, "object") else "repeat"

    def _add(
        self, name: str, position: Position, schema: Mapping[str, Any], required: bool,
        style: Style, *, is_body: bool = False, explode: bool = False,
        allow_reserved: bool = False,
    ) -> None:  # fmt: skip
        argument = argument_name(name) or position
        taken = {parameter.name for parameter in self.parameters}
        if argument in taken:
            argument = f"{position}_{argument}"[:MAX_ARGUMENT_NAME]
        number = 2
        while argument in taken:
            argument, number = f"{argument[: MAX_ARGUMENT_NAME - 4]}_{number}", number + 1
        wire = "" if argument == name or is_body else name
        text = json.dumps(schema, ensure_ascii=False)
        self.parameters.append(
            HttpParameter(
                name=argument,
                position=position,
                schema=text,
                required=required,
                wire_name=wire,
                style=style,
                is_body=is_body,
                explode=explode,
                allow_reserved=allow_reserved,
            )
        )


def _writes_alike(
    field: Mapping[str, Any], style: Style, other: Style, *, is_multipart: bool
) -> bool:
    """Return whether two styles write all values of a field of a form in the same way."""
    types = types_of(field)
    may_be_list = not types or "array" in types
    may_be_object = not types or "object" in types
    if is_multipart:  # an object is JSON, and a list a part for each item, unless it is joined
        return not may_be_list or (style in JOINED_STYLES) == (other in JOINED_STYLES)
    of_lists = {_OF_LISTS.get(name, name) for name in (style, other)}
    of_objects = {_OF_OBJECTS.get(name, name) for name in (style, other)}
    return not (may_be_list and len(of_lists) > 1) and not (may_be_object and len(of_objects) > 1)


def optional(name: str, error: Unsupported) -> str:
    """Return the end of a sentence about an optional parameter that can't be sent."""
    return f"its optional parameter {name[:64]!r}: {error}"


def _any_fields(read: Mapping[str, Any], description: str) -> dict[str, Any]:
    """Return the schema of a form whose fields a document does not name.

    Some say of it only that it is a file, or a list of files.
    """
    member = read.get("additionalProperties", read.get("items", read))
    is_file = holds_bytes(member)
    about = "The form: files as base64 by the names of their fields." if is_file else "The form."
    return {
        "type": "object",
        "description": f"{description} {about}".strip(),
        "additionalProperties": {"contentEncoding": "base64"} if is_file else {},
    }


def _with_rules(description: str, rules: Mapping[str, Any]) -> str:
    """Return the description of a text that stands for a value, with the schema of the value."""
    text = json.dumps(rules, ensure_ascii=False)
    if not rules or len(text) > _MAX_DOCUMENT:
        return description
    return f"{description} Its content by JSON Schema: {text}".strip()


def _largest_share(sizes: Iterable[int]) -> int:
    """Return the size to which the largest must be cut, so that the sum is within the limit."""
    remaining, ordered = MAX_SCHEMAS, sorted(sizes)
    for number, size in enumerate(ordered):
        share = remaining // (len(ordered) - number)
        if size > share:
            return share
        remaining -= size
    return MAX_SCHEMAS


def _content_style(given: Mapping[str, Any]) -> Style | None:
    """Return the style of a parameter with `content`: JSON, or else its text."""
    content = given.get("content")
    if not isinstance(content, Mapping) or not content:
        return None
    kind = str(next(iter(content))).partition(";")[0].strip().lower()
    return "json" if kind.endswith("json") or "*" in kind else "repeat"


def _style_of(encoding: Any) -> Any:
    return encoding.get("style") if isinstance(encoding, Mapping) else None
