"""Resolves the references and variables of a server's configuration, when an instance starts.

References are resolved only here, on the worker, so a value never crosses Sync and never enters a
hash, a log or a span (design.md#configuration).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, assert_never

from leaseway.data_plane.background import MAX_HUNG_THREADS
from leaseway.data_plane.core.proxies import (
    DIRECT,
    NO_PROXIES,
    BadProxy,
    Proxies,
    Proxy,
    of_environment,
    parse_proxy,
)
from leaseway.data_plane.core.resolved_values import ResolvedValues, SentCredential
from leaseway.data_plane.kinds.packages import UnusableKind, half_of
from leaseway.data_plane.kinds.python import read_code
from leaseway.data_plane.references.resolver import NO_VAULT, Resolver, Vault, is_own_key
from leaseway.server.base import CONFIG_VARIABLE
from leaseway.spec.auth import ASSERTION, CLIENT_ID
from leaseway.spec.kinds.builtin import BuiltinPart
from leaseway.spec.kinds.container import ContainerPart
from leaseway.spec.kinds.http_api import Credential, HttpApiPart
from leaseway.spec.kinds.process import ProcessPart
from leaseway.spec.kinds.python import PythonPart
from leaseway.spec.kinds.registered import RegisteredPart
from leaseway.spec.kinds.remote import RemotePart
from leaseway.spec.kinds.shared import CommandPart, RequestPart
from leaseway.spec.lease_names import marks
from leaseway.spec.model import Part, ServerSpec
from leaseway.spec.references import Value
from leaseway.spec.replaced import walk_json
from leaseway.wire.advice import for_operators
from leaseway.wire.daemon_threads import DaemonThreads
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.secrets.redaction import Hidden, hide
from leaseway.wire.secrets.secret_names import looks_secret, secret_forms

_MAX_CONFIG: Final = 120 << 10
"""Bytes; a process accepts no variable over 128 KiB."""


def _of_class(part: PythonPart, resolver: Resolver) -> ResolvedValues:
    """Return the command that runs a class, and its config."""
    code = read_code(part, resolver.known)
    return ResolvedValues(
        command=sys.executable,
        # -P: a module in the worker's folder must not shadow a package of ours.
        args=("-P", "-m", "leaseway.server", part.module, part.class_name),
        env={**resolver.values("env", part.env), **_class_config(part, resolver)},
        code=code.digest,
        modules=code.files,
    )


def _class_config(part: PythonPart, resolver: Resolver) -> dict[str, str]:
    """Return the variable with the config of a class; process lists do not show it."""
    if not part.config:
        return {}

    def text_of(path: str, value: Value) -> str:
        name = path.rpartition(".")[2].partition("[")[0]
        return resolver.value(f"config{path}", value, looks_secret(name))

    text = json.dumps(walk_json(json.loads(part.config), text_of), ensure_ascii=False)
    if len(text.encode(errors="replace")) > _MAX_CONFIG:
        problem = f"has more than {_MAX_CONFIG} bytes with its references resolved: shorten it"
        resolver.missing.append(("config", problem))
    return {CONFIG_VARIABLE: text}


def _of_api(part: HttpApiPart, resolver: Resolver) -> ResolvedValues:
    """Return the values of an API, with its credentials."""
    credentials: dict[str, SentCredential] = {}
    for name, credential in part.security.items():
        text = resolver.credential(f"security.{name}", credential.value, True)
        credentials[name] = sent = _sent(credential, text)
        if credential.kind == "basic":
            resolver.secrets.add(sent.value)
    return replace(of_requests(part, resolver), credentials=credentials)


def _sent(credential: Credential, text: str) -> SentCredential:
    match credential.kind:
        case "bearer":
            return SentCredential("header", "Authorization", f"Bearer {text}")
        case "basic":
            pair = f"{credential.name}:{text}" if credential.name else text
            encoded = base64.b64encode(pair.encode(errors="replace")).decode()
            return SentCredential("header", "Authorization", f"Basic {encoded}")
        case "header" | "query" | "cookie":
            return SentCredential(credential.kind, credential.name, text)
    assert_never(credential.kind)


def of_requests(part: RequestPart, resolver: Resolver) -> ResolvedValues:
    """Return the values of requests."""
    return ResolvedValues(
        url=resolver.text("url", part.url),
        headers=headers_of(part.headers, resolver),
        auth={
            name: resolver.credential(f"auth.{name}", value, name != CLIENT_ID)
            for name, value in part.auth.values.items()
            if name != ASSERTION
        },
        assertion=_assertion(part.auth.values.get(ASSERTION), resolver),
        proxies=proxies_of(part.proxy, resolver),
    )


def _assertion(value: Value | None, resolver: Resolver) -> Callable[[], str] | None:
    """Return what reads an assertion, which is there now and is replaced often."""
    if value is None:
        return None
    resolver.value(f"auth.{ASSERTION}", value, True)
    return partial(resolver.read, value)


def headers_of(headers: Mapping[str, Value], resolver: Resolver) -> dict[str, str]:
    """Return headers; every referenced one is a secret."""
    return {
        name: resolver.credential(
            f"headers.{name}", value, value.kind != "literal" or looks_secret(name)
        )
        for name, value in headers.items()
    }


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


ValuesOf = Callable[[Any, Resolver], ResolvedValues]
"""Returns the values of a part of its kind."""


def _of_command(part: CommandPart, resolver: Resolver) -> ResolvedValues:
    file = resolver.variables("env_file", part.env_file) if part.env_file else {}
    env = {**file, **resolver.values("env", part.env)}
    return ResolvedValues(
        command=resolver.text("command", part.command),
        args=resolver.texts("args", part.args, env),
        cwd=resolver.text("cwd", part.cwd),
        env=env,
    )


def _of_container(part: ContainerPart, resolver: Resolver) -> ResolvedValues:
    return replace(_of_command(part, resolver), image=resolver.text("image", part.image))


def _of_kit(part: BuiltinPart, resolver: Resolver) -> ResolvedValues:
    return ResolvedValues(
        command=sys.executable,
        args=("-P", "-m", "leaseway.data_plane.kit", *_kit_options(part, resolver)),
        env=resolver.values("env", part.env),
    )


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


def _of_remote(part: RemotePart, resolver: Resolver) -> ResolvedValues:
    session_id = resolver.text("sessionId", part.session_id)
    return replace(of_requests(part, resolver), session_id=session_id)


def _of_registered(part: RegisteredPart, resolver: Resolver) -> ResolvedValues:
    env = resolver.values("env", part.env)
    return ResolvedValues(
        command=resolver.text("command", part.command),
        args=resolver.texts("args", part.args, env),
        url=resolver.text("url", part.url),
        session_id=resolver.text("sessionId", part.session_id),
        env=env,
        headers=headers_of(part.headers, resolver),
        proxies=proxies_of({}, resolver) if part.url else NO_PROXIES,
    )


_OF_KINDS: Final[Mapping[type[Part], ValuesOf]] = {
    ProcessPart: _of_command,
    ContainerPart: _of_container,
    PythonPart: _of_class,
    BuiltinPart: _of_kit,
    RemotePart: _of_remote,
    HttpApiPart: _of_api,
    RegisteredPart: _of_registered,
}

_KEPT_HIDDEN: Final = 256
"""Secrets stay hidden for a while after their use: an ended server may still have output."""
_recently_hidden: Final[deque[Hidden]] = deque(maxlen=_KEPT_HIDDEN)
_disk: Final = DaemonThreads(MAX_HUNG_THREADS)
_hung: Final[set[str]] = set()
"""Files that do not respond. Each holds up one thread; no other start waits for it."""


def _ignore(path: str) -> None:
    """Handle the opening of a file of which nothing needs to know."""


def resolve(
    spec: ServerSpec,
    environment: Mapping[str, str],
    vault: Vault = NO_VAULT,
    on_open: Callable[[str], None] = _ignore,
) -> ResolvedValues:
    """Return the resolved values of a server; log lines hide its secrets while they are in use.

    Args:
        spec: The server.
        environment: The worker's environment.
        vault: Secrets that the environment does not have.
        on_open: Called with each file before it is opened.

    Raises:
        Fault: SERVER_NOT_READY with `problem` MISSING_REFERENCE; it names every missing reference.
    """
    known = {name: text for name, text in environment.items() if not is_own_key(name)}
    known_or_marks = known | (marks() if spec.lease_names else {})
    resolver = Resolver(known_or_marks, known, vault, spec.confined_files, on_open)
    resolved = _values_of(spec)(spec.part, resolver)
    if resolver.missing:
        raise _missing_fault(spec.key.server_id, resolver.missing, resolver.commands)
    secrets = secret_forms(resolver.secrets)
    hidden = hide(secrets)
    if hidden not in _recently_hidden:
        _recently_hidden.append(hidden)
    return replace(resolved, secrets=secrets, hidden=hidden)


async def read_references(
    spec: ServerSpec, environment: Mapping[str, str], vault: Vault, timeout: float
) -> ResolvedValues:
    """Return the resolved values of a server without blocking the loop, otherwise like `resolve`.

    Args:
        spec: The server.
        environment: The worker's environment.
        vault: Secrets that the environment does not have, in memory.
        timeout: Seconds for reading files.

    Raises:
        Fault: As for `resolve`; also if a file was not read in time, or hangs since an earlier
            start.
    """
    files = set(_files(spec).values())
    if not files and not spec.part.has_code:
        return resolve(spec, environment, vault)
    if files & _hung:
        raise unread_fault(spec, files & _hung, "does not respond: check its disk")
    opened: list[str] = []
    resolving = _disk.submit(partial(resolve, spec, environment, vault, opened.append))
    try:
        await asyncio.wait([resolving], timeout=timeout)
    finally:
        if not resolving.done() and opened:
            path = opened[-1]
            _hung.add(path)
            resolving.add_done_callback(lambda _: _hung.discard(path))
    if resolving.done():
        return resolving.result()
    if not opened:
        resolving.cancel()
    cause = f"was not read within {timeout:g} s: check its disk"
    raise unread_fault(spec, set(opened[-1:]) or None, cause)


def _values_of(spec: ServerSpec) -> ValuesOf:
    """Return what returns the values of a server.

    Raises:
        Fault: SERVER_NOT_READY with `problem` START_FAILED: its kind cannot be used here.
    """
    kind = type(spec.part)
    if kind in _OF_KINDS:
        return _OF_KINDS[kind]
    try:
        found: ValuesOf = half_of(kind).values_of
    except UnusableKind as error:
        server = spec.key.server_id
        raise Fault(
            Reason.SERVER_NOT_READY,
            f"The server {server} can't start: its kind {spec.transport} {error}.",
            metadata={"server": server, "problem": "START_FAILED"},
        ) from None
    return found


def unread_fault(spec: ServerSpec, paths: Collection[str] | None, cause: str) -> Fault:
    """Return the fault for files of a server that do not respond.

    Args:
        spec: The server.
        paths: The files, or None for all of its files.
        cause: Completes "the file x, which ...".
    """
    missing = [
        (key, f"refers to the file {path}, which {cause}")
        for key, path in _files(spec).items()
        if paths is None or path in paths
    ]
    return _missing_fault(spec.key.server_id, missing)


def _files(spec: ServerSpec) -> dict[str, str]:
    return {key: value.text for key, value in spec.values.items() if value.kind == "file"}


def _missing_fault(
    server: str, missing: list[tuple[str, str]], commands: Collection[str] = ()
) -> Fault:
    parts = "; ".join(f"{key} {problem}" for key, problem in missing)
    return Fault(
        Reason.SERVER_NOT_READY,
        f"The server {server} can't start on this worker: {parts}.",
        metadata={
            **for_operators(f"Where workers run: {'; '.join(commands)}." if commands else ""),
            "server": server,
            "problem": "MISSING_REFERENCE",
            "keys": ", ".join(key for key, _ in missing),
        },
    )
