"""What each kind of server gets of its entry, resolved."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from leaseway.data_plane.core.proxies import (
    DIRECT,
    NO_PROXIES,
    BadProxy,
    Proxies,
    Proxy,
    of_environment,
    parse_proxy,
)
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.references.modules import read_code
from leaseway.data_plane.references.resolver import Resolver
from leaseway.spec.kinds.builtin import BuiltinPart
from leaseway.spec.kinds.container import ContainerPart
from leaseway.spec.kinds.http_api import HttpApiPart
from leaseway.spec.kinds.process import ProcessPart
from leaseway.spec.kinds.python import PythonPart
from leaseway.spec.kinds.registered import RegisteredPart
from leaseway.spec.kinds.remote import RemotePart
from leaseway.spec.kinds.shared import CommandPart, RequestPart
from leaseway.spec.model import CLIENT_ID, Part, Value, walk_config
from leaseway.wire.secrets.secret_names import looks_secret

_MAX_CONFIG: Final = 120 << 10
"""Bytes; a process accepts no variable over 128 KiB."""
CONFIG_VARIABLE: Final = "LEASEWAY_SERVER_CONFIG"
"""The variable that `leaseway.server` reads a class's config from."""


def values_of(part: Part, resolver: Resolver) -> ResolvedValues:
    match part:
        case ProcessPart():
            return of_command(part, resolver)
        case ContainerPart():
            image = resolver.text("image", part.image)
            return replace(of_command(part, resolver), image=image)
        case PythonPart():
            return of_class(part, resolver)
        case BuiltinPart():
            return of_kit(part, resolver)
        case RemotePart():
            session_id = resolver.text("sessionId", part.session_id)
            return replace(of_requests(part, resolver), session_id=session_id)
        case HttpApiPart():
            return of_api(part, resolver)
        case RegisteredPart():
            return of_registered(part, resolver)
        case _:
            return ResolvedValues()


def of_command(part: CommandPart, resolver: Resolver) -> ResolvedValues:
    """Return the values of a command."""
    file = resolver.variables("env_file", part.env_file) if part.env_file else {}
    return ResolvedValues(
        command=resolver.text("command", part.command),
        args=resolver.texts("args", part.args),
        cwd=resolver.text("cwd", part.cwd),
        env={**file, **resolver.values("env", part.env)},
    )


def of_class(part: PythonPart, resolver: Resolver) -> ResolvedValues:
    """Return the command that runs a class, and its config."""
    code = read_code(part, resolver.known)
    return ResolvedValues(
        command=sys.executable,
        # -P: a module in the worker's folder must not shadow a package of ours.
        args=("-P", "-m", "leaseway.server", part.module, part.class_name),
        env={**resolver.values("env", part.env), **_config(part, resolver)},
        code=code.digest,
        modules=code.files,
    )


def of_kit(part: BuiltinPart, resolver: Resolver) -> ResolvedValues:
    """Return the command that runs the kit."""
    return ResolvedValues(
        command=sys.executable,
        args=("-P", "-m", "leaseway.data_plane.kit", *_kit_options(part, resolver)),
        env=resolver.values("env", part.env),
    )


def of_requests(part: RequestPart, resolver: Resolver) -> ResolvedValues:
    """Return the values of requests."""
    return ResolvedValues(
        url=resolver.text("url", part.url),
        headers=headers_of(part.headers, resolver),
        auth={
            name: resolver.value(f"auth.{name}", value, name != CLIENT_ID)
            for name, value in part.auth.values.items()
        },
        proxies=proxies_of(part.proxy, resolver),
    )


def of_api(part: HttpApiPart, resolver: Resolver) -> ResolvedValues:
    """Return the values of an API, with its credentials among the headers and the query."""
    requests = of_requests(part, resolver)
    credentials, query = _credentials(part, resolver)
    return replace(
        requests,
        headers={**requests.headers, **credentials},
        credentials=frozenset(credentials),
        query=query,
    )


def of_registered(part: RegisteredPart, resolver: Resolver) -> ResolvedValues:
    """Return all values that a registered transport can use."""
    return ResolvedValues(
        command=resolver.text("command", part.command),
        args=resolver.texts("args", part.args),
        url=resolver.text("url", part.url),
        session_id=resolver.text("sessionId", part.session_id),
        env=resolver.values("env", part.env),
        headers=headers_of(part.headers, resolver),
        proxies=proxies_of({}, resolver) if part.url else NO_PROXIES,
    )


def headers_of(headers: Mapping[str, Value], resolver: Resolver) -> dict[str, str]:
    """Return headers; every referenced one is a secret."""
    return {
        name: resolver.value(
            f"headers.{name}", value, value.kind != "literal" or looks_secret(name)
        )
        for name, value in headers.items()
    }


def _kit_options(part: BuiltinPart, resolver: Resolver) -> Iterator[str]:
    kit = part.builtin
    for tool in kit.tools:
        yield from ("--tool", tool)
    for i, root in enumerate(kit.roots):
        # A separate argument and absolute, so that a sandbox finds and mounts it.
        yield from ("--root", str(Path(resolver.text(f"roots[{i}]", root)).absolute()))
    for i, entry in enumerate(kit.commands):
        yield from ("--command", resolver.text(f"commands[{i}]", entry))
    for i, host in enumerate(kit.hosts):
        yield from ("--host", resolver.text(f"hosts[{i}]", host))
    if part.sandbox.strict:
        yield "--confined"


def _config(part: PythonPart, resolver: Resolver) -> dict[str, str]:
    """Return the variable with the config of a class; process lists do not show it."""
    if not part.config:
        return {}

    def text_of(path: str, value: Value) -> str:
        name = path.rpartition(".")[2].partition("[")[0]
        return resolver.value(f"config{path}", value, looks_secret(name))

    text = json.dumps(walk_config(json.loads(part.config), text_of), ensure_ascii=False)
    if len(text.encode(errors="replace")) > _MAX_CONFIG:
        problem = f"has more than {_MAX_CONFIG} bytes with its references resolved: shorten it"
        resolver.missing.append(("config", problem))
    return {CONFIG_VARIABLE: text}


def _credentials(part: HttpApiPart, resolver: Resolver) -> tuple[dict[str, str], dict[str, str]]:
    """Return the headers and query parameters with credentials."""
    headers: dict[str, str] = {}
    query: dict[str, str] = {}
    cookies: list[str] = []
    for scheme, credential in part.security.items():
        text = resolver.value(f"security.{scheme}", credential.value, True)
        match credential.kind:
            case "bearer":
                headers["Authorization"] = f"Bearer {text}"
            case "basic":
                pair = f"{credential.name}:{text}" if credential.name else text
                encoded = base64.b64encode(pair.encode(errors="replace")).decode()
                resolver.secrets.add(f"Basic {encoded}")
                headers["Authorization"] = f"Basic {encoded}"
            case "header":
                headers[credential.name] = text
            case "query":
                query[credential.name] = text
            case "cookie":
                cookies.append(f"{credential.name}={text}")
    if cookies:
        headers["Cookie"] = "; ".join(cookies)
    return headers, query


def proxies_of(given: Mapping[str, Value], resolver: Resolver) -> Proxies:
    """Return the proxies of a server's requests: those of its entry, or the environment's."""
    try:
        if not given:
            proxies = of_environment(resolver.known)
        else:
            texts = {
                name: resolver.value(f"proxy.{name}", value, name == "password")
                for name, value in given.items()
            }
            text = texts.pop("url", "")
            proxies = NO_PROXIES
            if text and text != DIRECT:
                proxies = Proxies(parse_proxy(text, **texts))
        # Also of proxies in the environment, which no key of an entry names.
        used = [proxies.fixed] if proxies.fixed is not None else _known(proxies.variables.values())
    except BadProxy as error:
        resolver.missing.append(("proxy", str(error)))
        return NO_PROXIES
    for proxy in used:
        if proxy is not None and proxy.password:
            pair = f"{proxy.username}:{proxy.password}"
            encoded = base64.b64encode(pair.encode(errors="replace")).decode()
            resolver.secrets.update((proxy.password, f"Basic {encoded}"))
    return proxies


def _known(texts: Iterable[str]) -> Iterator[Proxy]:
    for text in texts:
        with contextlib.suppress(BadProxy):  # reported when a request would go through it
            yield parse_proxy(text)
