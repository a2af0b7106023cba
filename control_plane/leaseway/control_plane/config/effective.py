"""The effective values of a configuration, each with its layer, file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import PurePath
from typing import Any, Final

from leaseway.control_plane.config.layers.sources import Source
from leaseway.control_plane.config.schema import credentials
from leaseway.control_plane.config.schema.issues import Narrowings, ParsedConfig
from leaseway.control_plane.config.schema.keys import SERVER_KEYS, ServerKey
from leaseway.control_plane.config.tree.yaml_tree import START, Position
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.keys import Choice, keys_at, keys_of
from leaseway.spec.model import Controls, ServerSpec
from leaseway.spec.references import Value
from leaseway.spec.replaced import ITSELF, kept_as, value_at, walk_json

_NOT_KEPT: Final = frozenset(key.name for key in keys_of(Controls)) - {"enabled"}
_SECRETS: Final = frozenset(
    inner.name for key in SERVER_KEYS.values() for inner in key.declared.inside if inner.secret
) - {ITSELF}
"""Names under which every literal is a credential, however short."""

MASK: Final = "***"
"""Replaces a literal that looks like a credential."""


@dataclass(frozen=True)
class EffectiveValue:
    """One configured value, with unresolved references.

    `tenant` is empty for the common variant, `key` is a path such as `env.MODE`. The value is set
    by a `layer`, in a `file`, on a `line` counted from 1.
    """

    server: str
    tenant: str
    key: str
    value: Any
    layer: str
    file: str
    line: int


def effective_values(parsed: ParsedConfig, sources: Sequence[Source]) -> list[EffectiveValue]:
    """Return the configured values by server and tenant, without defaults."""
    layers = {str(source.path): source.kind for source in sources}
    values: list[EffectiveValue] = []
    for spec in parsed.servers.values():
        origins = dict(parsed.origins.get(spec.key, {}))
        if "transform" not in origins and "defaults.transform" in parsed.places:
            origins["transform"] = parsed.places["defaults.transform"]
        narrowings = parsed.narrowings.get(spec.key, {})
        for key, value, at in _values(spec, origins, narrowings):
            layer = layers.get(at.file) or _folder_layer(at, sources)
            values.append(
                EffectiveValue(
                    server=spec.key.server_id,
                    tenant=spec.key.tenant,
                    key=key,
                    value=value,
                    layer=layer,
                    file=at.file,
                    line=at.line,
                )
            )
    return values


def _folder_layer(at: Position, sources: Sequence[Source]) -> str:
    folder = str(PurePath(at.file).parent)
    return next((source.kind for source in sources if str(source.path) == folder), "native")


def _values(
    spec: ServerSpec, origins: Mapping[str, Position], narrowings: Narrowings
) -> Iterator[tuple[str, Any, Position]]:
    if spec.hidden:
        yield "enabled", False, origins.get("enabled", START)
        return
    for key in SERVER_KEYS.values():
        name, above = key.name, narrowings.get(key.name, ())
        if name in _NOT_KEPT or not (above or name in origins):
            continue
        at = origins.get(name, START)
        match _field(spec, key):
            case Mapping() as members:
                for inner, member in members.items():
                    path = f"{name}.{inner}"
                    yield path, _shown(inner, member), origins.get(path, START)
            case NameFilter() as rules:
                places = [at] if rules.whitelist or rules.blacklist else []
                for each, place in zip(_links(rules), (*places, *above), strict=False):
                    yield name, _shown(name, each), place
            case value:
                yield name, _shown_of_key(key, value), at


def _links(rules: NameFilter) -> Iterator[NameFilter]:
    """Yield a filter and those that narrow it, the lowest first, each without the others."""
    link: NameFilter | None = rules
    while link is not None:
        if link.whitelist or link.blacklist:
            yield replace(link, also=None)
        link = link.also


def _field(spec: ServerSpec, key: ServerKey) -> Any:
    if key.field == "enabled":
        return True
    path = key.declared.becomes or key.field
    found = value_at(spec if hasattr(spec, path.partition(".")[0]) else spec.part, path)
    return list(map(str, found)) if key.declared.listed else found


def _shown_of_key(key: ServerKey, value: Any) -> Any:
    if key.name == "args":
        before = ["", *value]
        return [
            MASK if credentials.credential_in_argument(item, last) else item
            for item, last in zip(value, before, strict=False)
        ]
    if kept_as(key.declared) == "json":
        return walk_json(json.loads(value), _masked)
    return _shown(key.name, value)


def _shown(name: str, value: Any) -> Any:
    """Return a value as it is shown, whatever it is made of, without literal credentials."""
    match value:
        case Value():
            return _masked(name, value)
        case str():
            return MASK if credentials.credential_in_url(value) else value
        case Mapping():
            return {key: _shown(str(key), member) for key, member in value.items()}
        case tuple() | list():
            return [_shown(name, item) for item in value]
        case _ if is_dataclass(value):
            return dict(_members(value))
        case _:
            return value


def _members(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield the members of a group of settings as they are written, without empty ones."""
    for member in fields(settings):
        value = getattr(settings, member.name)
        keys = keys_at(member)
        written = keys[0] if len(keys) == 1 else None
        name = written.name or member.name if written else member.name
        if value in (None, ""):
            continue
        if written is not None and isinstance(written.shape, Choice) and isinstance(value, bool):
            value = written.shape.words[value]  # the second of two words is kept as true
        is_secret = written is not None and written.secret and isinstance(value, Value)
        yield name, _masked(name, value, is_secret=True) if is_secret else _shown(name, value)


def _masked(name: str, value: Value, *, is_secret: bool = False) -> Any:
    name = name.rpartition(".")[2]
    if value.kind != "literal":
        return {value.kind: value.text}
    hides = (is_secret or name in _SECRETS) and credentials.with_defaults(value.text)
    return MASK if hides or credentials.credential_kind(name, value.text) else value.text
