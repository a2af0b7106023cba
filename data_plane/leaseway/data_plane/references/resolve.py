"""Resolves the references and variables of a server's configuration, when an instance starts.

References are resolved only here, on the worker, so a value never crosses Sync and never enters a
hash, a log or a span (design.md#configuration).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from leaseway.data_plane.background import MAX_HUNG_THREADS, DiskThreads
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
from leaseway.data_plane.references.files import UnreadableFile, read_file
from leaseway.data_plane.references.modules import read_code
from leaseway.spec.lease_names import NAMES, marks
from leaseway.spec.model import CLIENT_ID, ServerSpec, Value, walk_config
from leaseway.spec.references import UnresolvedReference, expand, references
from leaseway.vault.key import VaultError
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.secrets.redaction import Hidden, hide
from leaseway.wire.secrets.secret_names import is_secret_variable, looks_secret, secret_forms

_MAX_CONFIG: Final = 120 << 10
"""Bytes; a process accepts no variable over 128 KiB."""
_MAX_VARIABLES: Final = 1_000
"""Variables of a file."""

CONFIG_VARIABLE: Final = "LEASEWAY_SERVER_CONFIG"
"""The variable that `leaseway.server` reads a class's config from."""

_NAME: Final = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_.-]*)\s*=\s*")
_DOUBLE_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?')
_SINGLE_QUOTED: Final = re.compile(r"'([^']*)'\s*(?:#.*)?")
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}

_KEPT_HIDDEN: Final = 256
"""Secrets stay hidden for a while after their use: an ended server may still have output."""
_recently_hidden: Final[deque[Hidden]] = deque(maxlen=_KEPT_HIDDEN)
_disk: Final = DiskThreads(MAX_HUNG_THREADS)
_hung: Final[set[str]] = set()
"""Files that do not respond. Each holds up one thread; no other start waits for it."""


class Vault(Protocol):
    """Secrets that are not in the environment."""

    def get(self, name: str) -> str | None:
        """Return a secret, or None if there is none of that name.

        Raises:
            VaultError: The vault cannot be read.
        """


class _EmptyVault:
    def get(self, name: str) -> str | None:
        return None


NO_VAULT: Final[Vault] = _EmptyVault()


class _MissingReference(Exception):
    """A reference does not resolve; the text says what is missing and what to do."""


class BadEnvFile(ValueError):
    """A file of variables is invalid; the message completes "the file x, ..."."""


def parse_env_file(text: str) -> dict[str, str]:
    r"""Return the variables of a file with one `NAME=VALUE` per line; the last of a name wins.

    `export` before a name, blank lines and comments are ignored. A value in single quotes is
    literal; in double quotes `\n`, `\t`, `\r`, `\"` and `\\` are escapes; without quotes it ends
    at ` #`. Variables in values are not expanded.

    Raises:
        BadEnvFile: A line is not `NAME=VALUE`, or there are too many. The message has no value.
    """
    variables: dict[str, str] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _NAME.match(line)
        value = None if match is None else _parse_value(line[match.end() :])
        if match is None or value is None or "\0" in value:
            raise BadEnvFile(f"whose line {number} is no NAME=VALUE on one line")
        variables[match[1]] = value
    if len(variables) > _MAX_VARIABLES:
        raise BadEnvFile(f"which has more than {_MAX_VARIABLES} variables")
    return variables


def _parse_value(text: str) -> str | None:
    if text.startswith('"'):
        match = _DOUBLE_QUOTED.fullmatch(text)
        if match is None:
            return None
        return _ESCAPE.sub(lambda escape: _ESCAPES.get(escape[1], escape[1]), match[1])
    if text.startswith("'"):
        match = _SINGLE_QUOTED.fullmatch(text)
        return None if match is None else match[1]
    return re.split(r"\s#", text, maxsplit=1)[0].rstrip()


class _Resolver:
    """Resolves the values of one server; collects its secrets and its missing references."""

    def __init__(
        self,
        environment: Mapping[str, str],
        vault: Vault,
        confined_files: Mapping[str, Sequence[str]],
        on_open: Callable[[str], None],
    ) -> None:
        self._confined_files = confined_files
        self._on_open = on_open
        self._environment = environment
        self._vault = vault
        self.secrets: set[str] = set()
        self.missing: list[tuple[str, str]] = []

    def value(self, key: str, value: Value, secret: bool) -> str:
        """Return a resolved value; record a missing reference under its key."""
        try:
            literal = value.kind == "literal"
            text = self._literal(value.text) if literal else self._reference(value)
        except _MissingReference as missing:
            self.missing.append((key, str(missing)))
            return ""
        if secret or self._is_secret(value, text):
            self.secrets.add(text)
        return text

    @staticmethod
    def _is_secret(value: Value, text: str) -> bool:
        match value.kind:
            case "literal":
                return False  # it is visible in the configuration
            case "env":
                return is_secret_variable(value.text, text)
            case _:
                return True

    def text(self, key: str, text: str) -> str:
        """Return a plain string with its `${NAME}` expanded."""
        return self.value(key, Value("literal", text), secret=False)

    def _literal(self, text: str) -> str:
        try:
            expanded = expand(text, self._environment)
        except UnresolvedReference as error:
            _reject_own_key(error.name)
            raise _MissingReference(
                f"refers to ${{{error.name}}}, which is not set: set {error.name} in the worker's "
                f"environment, or write ${{{error.name}:-default}}"
            ) from None
        for name, default in references(text):
            found = self._environment.get(name)
            if name in NAMES:
                continue
            if found is not None and is_secret_variable(name, found):
                self.secrets.add(found)
            elif default and looks_secret(name):  # other defaults are visible in the configuration
                self.secrets.add(default)
        return expanded

    def _reference(self, value: Value) -> str:
        if value.kind == "file":
            return self._file(value.text)
        _reject_own_key(value.text)
        found = self._environment.get(value.text)
        if found is None and value.kind == "secret":
            found = self._from_vault(value.text)
        if found is None:
            raise _MissingReference(
                f"refers to the environment variable {value.text}, which is not set: set it in "
                "the worker's environment"
            )
        return found

    def _from_vault(self, name: str) -> str:
        try:
            found = self._vault.get(name)
        except VaultError as error:
            raise _MissingReference(
                f"refers to the secret {name}, which the worker's environment does not have, and "
                f"its vault cannot be read ({str(error).rstrip('.')})"
            ) from None
        if found is None:
            raise _MissingReference(
                f"refers to the secret {name}, which neither the worker's environment nor its "
                f"vault has: set it there, with: leaseway vault set {name}"
            )
        return found

    def variables(self, key: str, path: str) -> dict[str, str]:
        try:
            found = parse_env_file(self._file(path))
        except _MissingReference as missing:
            self.missing.append((key, str(missing)))
            return {}
        except BadEnvFile as error:
            self.missing.append((key, f"refers to the file {path}, {error}"))
            return {}
        self.secrets.update(text for name, text in found.items() if is_secret_variable(name, text))
        return found

    def _file(self, path: str) -> str:
        self._on_open(path)
        try:
            text = read_file(path, self._confined_files.get(path, ()))
        except UnreadableFile as error:
            raise _MissingReference(f"refers to the file {path}, which {error}") from None
        return text.removesuffix("\n").removesuffix("\r")


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
    known = {name: text for name, text in environment.items() if not _is_own_key(name)}
    known_or_marks = known | (marks() if spec.lease_names else {})
    resolver = _Resolver(known_or_marks, vault, spec.confined_files, on_open)
    command, args = _command(spec, resolver)
    credentials, query = _credentials(spec, resolver)
    code = read_code(spec, known)
    resolved = ResolvedValues(
        command=command,
        args=args,
        image=resolver.text("image", spec.image),
        url=resolver.text("url", spec.url),
        session_id=resolver.text("sessionId", spec.session_id),
        cwd=resolver.text("cwd", spec.cwd),
        env={
            **(resolver.variables("env_file", spec.env_file) if spec.env_file else {}),
            **{
                name: resolver.value(f"env.{name}", value, looks_secret(name))
                for name, value in spec.env.items()
            },
            **_config(spec, resolver),
        },
        headers={
            name: resolver.value(
                f"headers.{name}", value, value.kind != "literal" or looks_secret(name)
            )
            for name, value in spec.headers.items()
        }
        | credentials,
        credentials=frozenset(credentials),
        query=query,
        auth={
            name: resolver.value(f"auth.{name}", value, name != CLIENT_ID)
            for name, value in spec.auth.values.items()
        },
        proxies=_proxies(spec, resolver, known),
        code=code.digest,
        modules=code.files,
    )
    if resolver.missing:
        raise _missing_fault(spec.key.server_id, resolver.missing)
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
    if not files and spec.transport != "python":
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


def _command(spec: ServerSpec, resolver: _Resolver) -> tuple[str, tuple[str, ...]]:
    """Return the configured command, or the command that runs a Python class or the kit."""
    if spec.transport == "python":
        # -P: a module in the worker's folder must not shadow a package of ours.
        return sys.executable, ("-P", "-m", "leaseway.server", spec.module, spec.class_name)
    if spec.transport == "builtin":
        return sys.executable, (
            "-P",
            "-m",
            "leaseway.data_plane.kit",
            *_kit_options(spec, resolver),
        )
    args = tuple(resolver.text(f"args[{i}]", arg) for i, arg in enumerate(spec.args))
    return resolver.text("command", spec.command), args


def _kit_options(spec: ServerSpec, resolver: _Resolver) -> Iterator[str]:
    kit = spec.builtin
    for tool in kit.tools:
        yield from ("--tool", tool)
    for i, root in enumerate(kit.roots):
        # A separate argument and absolute, so that a sandbox finds and mounts it.
        yield from ("--root", str(Path(resolver.text(f"roots[{i}]", root)).absolute()))
    for i, entry in enumerate(kit.commands):
        yield from ("--command", resolver.text(f"commands[{i}]", entry))
    for i, host in enumerate(kit.hosts):
        yield from ("--host", resolver.text(f"hosts[{i}]", host))
    if spec.sandbox.strict:
        yield "--confined"


def _config(spec: ServerSpec, resolver: _Resolver) -> dict[str, str]:
    """Return the variable with the config of a class; process lists do not show it."""
    if not spec.config:
        return {}

    def text_of(path: str, value: Value) -> str:
        name = path.rpartition(".")[2].partition("[")[0]
        return resolver.value(f"config{path}", value, looks_secret(name))

    text = json.dumps(walk_config(json.loads(spec.config), text_of), ensure_ascii=False)
    if len(text.encode(errors="replace")) > _MAX_CONFIG:
        problem = f"has more than {_MAX_CONFIG} bytes with its references resolved: shorten it"
        resolver.missing.append(("config", problem))
    return {CONFIG_VARIABLE: text}


def _credentials(spec: ServerSpec, resolver: _Resolver) -> tuple[dict[str, str], dict[str, str]]:
    """Return the headers and query parameters with credentials."""
    headers: dict[str, str] = {}
    query: dict[str, str] = {}
    cookies: list[str] = []
    for scheme, credential in spec.security.items():
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


def _proxies(spec: ServerSpec, resolver: _Resolver, environment: Mapping[str, str]) -> Proxies:
    """Return the proxies of a server's requests: its entry's, or the environment's."""
    if not spec.url or spec.is_process:
        return NO_PROXIES
    try:
        if not spec.proxy:
            proxies = of_environment(environment)
        else:
            texts = {
                name: resolver.value(f"proxy.{name}", value, name == "password")
                for name, value in spec.proxy.items()
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


def _is_own_key(name: str) -> bool:
    return name.startswith("LEASEWAY_") and "KEY" in name


def _reject_own_key(name: str) -> None:
    if _is_own_key(name):
        raise _MissingReference(f"refers to {name}, a key of Leaseway's own: use another variable")


def _missing_fault(server: str, missing: list[tuple[str, str]]) -> Fault:
    parts = "; ".join(f"{key} {problem}" for key, problem in missing)
    return Fault(
        Reason.SERVER_NOT_READY,
        f"The server {server} can't start on this worker: {parts}.",
        metadata={
            "server": server,
            "problem": "MISSING_REFERENCE",
            "keys": ", ".join(key for key, _ in missing),
        },
    )
