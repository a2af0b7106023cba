"""The effective values of a configuration, each with its layer, file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import PurePath
from typing import Any, Final

from leaseway.control_plane.config.layers.sources import Source
from leaseway.control_plane.config.schema import credentials
from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.control_plane.config.schema.keys import SERVER_KEYS
from leaseway.control_plane.config.schema.tables import Key
from leaseway.control_plane.config.tree.yaml_tree import START, Position
from leaseway.spec.auth import CLIENT_SECRET, PRIVATE_KEY
from leaseway.spec.kinds.http_api import Credential, HttpApiPart
from leaseway.spec.kinds.python import walk_config
from leaseway.spec.model import ServerSpec
from leaseway.spec.references import Value

_CREDENTIAL: Final = "token"
_SECRETS: Final = frozenset({_CREDENTIAL, "password", CLIENT_SECRET, PRIVATE_KEY})
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
        for key, value in _values(spec, origins):
            at = origins.get(key, START)
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


def _values(spec: ServerSpec, origins: Mapping[str, Position]) -> Iterator[tuple[str, Any]]:
    if spec.hidden:
        yield "enabled", False
        return
    for key in SERVER_KEYS.values():
        if key.name not in origins:
            continue
        value = _field(spec, key)
        match value:
            case Mapping():
                yield from (
                    (f"{key.name}.{name}", _shown(name, member)) for name, member in value.items()
                )
            case _:
                yield key.name, _shown_of_key(key.name, value)


def _field(spec: ServerSpec, key: Key) -> Any:
    if key.field == "enabled":
        return True
    if key.field in ("openapi", "http_tools"):
        tools = spec.part_as(HttpApiPart).http_tools
        return [f"{tool.name}: {tool.method} {tool.base_url}{tool.endpoint}" for tool in tools]
    first, *rest = key.field.split(".")
    value: Any = getattr(spec if hasattr(spec, first) else spec.part, first)
    for name in rest:
        value = getattr(value, name)
    return value


def _shown_of_key(name: str, value: Any) -> Any:
    if name == "args":
        before = ["", *value]
        return [
            MASK if credentials.credential_in_argument(item, last) else item
            for item, last in zip(value, before, strict=False)
        ]
    if name in ("config", "podTemplate"):
        return walk_config(json.loads(value), _masked)
    return _shown(name, value)


def _shown(name: str, value: Any) -> Any:
    """Return a value as it is shown, whatever it is made of, without literal credentials."""
    match value:
        case Value():
            return _masked(name, value)
        case Credential():
            written = {"type": value.kind, "name": value.name}
            shown = {**written, "value": _masked(_CREDENTIAL, value.value)}
            return {key: text for key, text in shown.items() if text}
        case str():
            return MASK if credentials.credential_in_url(value) else value
        case Mapping():
            return {key: _shown(str(key), member) for key, member in value.items()}
        case tuple() | list():
            return [_shown(name, item) for item in value]
        case _ if is_dataclass(value):
            return {
                member.name: _shown(member.name, getattr(value, member.name))
                for member in fields(value)
            }
        case _:
            return value


def _masked(name: str, value: Value) -> Any:
    name = name.rpartition(".")[2]
    if value.kind != "literal":
        return {value.kind: value.text}
    is_secret = name in _SECRETS and credentials.with_defaults(value.text)
    return MASK if is_secret or credentials.credential_kind(name, value.text) else value.text
