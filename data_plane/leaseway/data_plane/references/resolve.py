"""Turns configured values into what a server gets, on the worker, when an instance starts.

References stay references until here, so a value never crosses Sync and never enters a hash, a
log or a span (DESIGN §2).
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from leaseway.data_plane.background import DiskThreads
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.references.env_file import BadEnvFile, read_env_file
from leaseway.data_plane.references.modules import read_code
from leaseway.data_plane.references.patience import MOST_HUNG
from leaseway.spec.model import ServerSpec, Value, walk_config
from leaseway.spec.references import UnresolvedReference, expand, references
from leaseway.vault.key import VaultError
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.secrets.redaction import Hidden, hide
from leaseway.wire.secrets.secret_names import is_secret_variable, looks_secret, secret_forms

_MAX_FILE: Final = 1 << 20
_MAX_CONFIG: Final = 120 << 10
"""Bytes; a process takes no variable over 128 KiB."""

CONFIG_VARIABLE: Final = "LEASEWAY_SERVER_CONFIG"
"""What `leaseway.server` takes a class's config from."""
_KEPT_HIDDEN: Final = 256
"""Readings whose secrets stay hidden after their use: last words come when a server has ended."""
_hidden_lately: Final[deque[Hidden]] = deque(maxlen=_KEPT_HIDDEN)
_disk: Final = DiskThreads(MOST_HUNG)
_hung: Final[set[str]] = set()
"""Files that keep a thread each, because they do not answer; nobody else waits for one of them."""


class Vault(Protocol):
    """Where secrets are kept that are not in the environment."""

    def get(self, name: str) -> str | None:
        """Return a secret, or None where there is none of that name.

        Raises:
            VaultError: There is a vault, and it cannot be read.
        """


class _Empty:
    def get(self, name: str) -> str | None:
        return None


NO_VAULT: Final[Vault] = _Empty()


class _Missing(Exception):
    """A reference can't be resolved; the text says what is missing and what to do."""


class _Resolver:
    def __init__(
        self, environment: Mapping[str, str], vault: Vault, opening: Callable[[str], None]
    ) -> None:
        self._opening = opening
        self._environment = environment
        self._vault = vault
        self.secrets: set[str] = set()
        self.missing: list[tuple[str, str]] = []

    def value(self, key: str, value: Value, secret: bool) -> str:
        """Return what a value stands for; note what is missing under its key."""
        try:
            literal = value.kind == "literal"
            text = self._literal(value.text) if literal else self._reference(value)
        except _Missing as missing:
            self.missing.append((key, str(missing)))
            return ""
        if secret or self._is_secret(value, text):
            self.secrets.add(text)
        return text

    @staticmethod
    def _is_secret(value: Value, text: str) -> bool:
        match value.kind:
            case "literal":
                return False  # whoever wrote it where no credential belongs meant it to be seen
            case "env":
                return is_secret_variable(value.text, text)
            case _:
                return True

    def text(self, key: str, text: str) -> str:
        """Return a plain string with its `${NAME}` replaced."""
        return self.value(key, Value("literal", text), secret=False)

    def _literal(self, text: str) -> str:
        try:
            expanded = expand(text, self._environment)
        except UnresolvedReference as error:
            _refuse_own_key(error.name)
            raise _Missing(
                f"refers to ${{{error.name}}}, which is not set: set {error.name} in the worker's "
                f"environment, or write ${{{error.name}:-default}}"
            ) from None
        for name, default in references(text):
            found = self._environment.get(name)
            if found is not None and is_secret_variable(name, found):
                self.secrets.add(found)
            elif default and looks_secret(name):  # other defaults stand in the configuration
                self.secrets.add(default)
        return expanded

    def _reference(self, value: Value) -> str:
        if value.kind == "file":
            return self._file(value.text)
        _refuse_own_key(value.text)
        found = self._environment.get(value.text)
        if found is None and value.kind == "secret":
            found = self._from_vault(value.text)
        if found is None:
            raise _Missing(
                f"refers to the environment variable {value.text}, which is not set: set it in "
                "the worker's environment"
            )
        return found

    def _from_vault(self, name: str) -> str:
        try:
            found = self._vault.get(name)
        except VaultError as error:
            raise _Missing(
                f"refers to the secret {name}, which the worker's environment does not have, and "
                f"its vault cannot be read ({str(error).rstrip('.')})"
            ) from None
        if found is None:
            raise _Missing(
                f"refers to the secret {name}, which neither the worker's environment nor its "
                f"vault has: set it there, with: leaseway vault set {name}"
            )
        return found

    def variables(self, key: str, path: str) -> dict[str, str]:
        try:
            found = read_env_file(self._file(path))
        except _Missing as missing:
            self.missing.append((key, str(missing)))
            return {}
        except BadEnvFile as error:
            self.missing.append((key, f"refers to the file {path}, {error}"))
            return {}
        self.secrets.update(text for name, text in found.items() if is_secret_variable(name, text))
        return found

    def _file(self, path: str) -> str:
        self._opening(path)
        if Path(path).resolve().is_relative_to(_own_folder()):
            raise _Missing(
                f"refers to the file {path}, which is in Leaseway's own folder and given to no "
                "server: keep the server's files elsewhere"
            )
        try:
            with Path(path).open("rb") as file:
                content = file.read(_MAX_FILE + 1)
            text = content.decode()
        except OSError as error:
            raise _Missing(
                f"refers to the file {path}, which can't be read ({error.strerror}): mount it "
                "where the worker runs"
            ) from None
        except UnicodeDecodeError:
            raise _Missing(f"refers to the file {path}, which is not UTF-8 text") from None
        if len(content) > _MAX_FILE:
            raise _Missing(f"refers to the file {path}, which is larger than {_MAX_FILE} bytes")
        return text.removesuffix("\n").removesuffix("\r")


def resolve(
    spec: ServerSpec,
    environment: Mapping[str, str],
    vault: Vault = NO_VAULT,
    opening: Callable[[str], None] = lambda _path: None,
) -> ResolvedValues:
    """Return what a server gets; as long as that is kept, no log line shows its secrets.

    Args:
        spec: The server.
        environment: The worker's environment.
        vault: Where secrets are that the environment does not have.
        opening: Told of each file before it is opened.

    Raises:
        Fault: SERVER_NOT_READY with `problem` MISSING_REFERENCE; it names every missing one.
    """
    known = {name: text for name, text in environment.items() if not _is_own_key(name)}
    resolver = _Resolver(known, vault, opening)
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
        code=code.mark,
        modules=code.files,
    )
    if resolver.missing:
        raise _missing_fault(spec.key.server_id, resolver.missing)
    secrets = secret_forms(resolver.secrets)
    hidden = hide(secrets)
    if hidden not in _hidden_lately:
        _hidden_lately.append(hidden)
    return replace(resolved, secrets=secrets, hidden=hidden)


async def read_references(
    spec: ServerSpec, environment: Mapping[str, str], vault: Vault, timeout: float
) -> ResolvedValues:
    """Return what a server gets, as `resolve` does, without holding up the loop.

    Args:
        spec: The server.
        environment: The worker's environment.
        vault: Where secrets are that the environment does not have, in memory.
        timeout: Seconds that reading files may take.

    Raises:
        Fault: As `resolve` does; also where a file was not read in time, or another server still
            waits for it.
    """
    files = set(_files(spec).values())
    if not files and spec.transport != "python":
        return resolve(spec, environment, vault)
    if files & _hung:
        raise unread(spec, files & _hung, "does not answer: see whether its disk does")
    opened: list[str] = []
    resolved_values = _disk.start(partial(resolve, spec, environment, vault, opened.append))
    try:
        await asyncio.wait([resolved_values], timeout=timeout)
    finally:
        if not resolved_values.done() and opened:
            path = opened[-1]
            _hung.add(path)
            resolved_values.add_done_callback(lambda _: _hung.discard(path))
    if resolved_values.done():
        return resolved_values.result()
    if not opened:
        resolved_values.cancel()
    late = f"was not read within {timeout:g} s: see whether its disk answers"
    raise unread(spec, set(opened[-1:]) or None, late)


def unread(spec: ServerSpec, paths: Collection[str] | None, why: str) -> Fault:
    """Return the fault for files that do not answer.

    Args:
        spec: Whose they are.
        paths: Which of its files, or None for any of them.
        why: The end of "the file x, which ...".
    """
    missing = [
        (key, f"refers to the file {path}, which {why}")
        for key, path in _files(spec).items()
        if paths is None or path in paths
    ]
    return _missing_fault(spec.key.server_id, missing)


def _files(spec: ServerSpec) -> dict[str, str]:
    return {key: value.text for key, value in spec.values.items() if value.kind == "file"}


def _command(spec: ServerSpec, resolver: _Resolver) -> tuple[str, tuple[str, ...]]:
    """Return what is started: the configured command, or the program that runs a class or kit."""
    if spec.transport == "python":
        # -P: nothing that lies in the worker's folder takes the place of a package of ours.
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
    on = spec.builtin
    for tool in on.tools:
        yield from ("--tool", tool)
    for i, root in enumerate(on.roots):
        # As a word of its own and absolute, so that a sandbox keeps it in sight.
        yield from ("--root", str(Path(resolver.text(f"roots[{i}]", root)).absolute()))
    for i, entry in enumerate(on.commands):
        yield from ("--command", resolver.text(f"commands[{i}]", entry))
    for i, host in enumerate(on.hosts):
        yield from ("--host", resolver.text(f"hosts[{i}]", host))


def _config(spec: ServerSpec, resolver: _Resolver) -> dict[str, str]:
    """Return the variable that hands a class its config; process lists do not show it."""
    if not spec.config:
        return {}

    def text_of(path: str, value: Value) -> str:
        name = path.rpartition(".")[2].partition("[")[0]
        return resolver.value(f"config{path}", value, looks_secret(name))

    text = json.dumps(walk_config(json.loads(spec.config), text_of), ensure_ascii=False)
    if len(text.encode(errors="replace")) > _MAX_CONFIG:
        what = f"has more than {_MAX_CONFIG} bytes with its references resolved: shorten it"
        resolver.missing.append(("config", what))
    return {CONFIG_VARIABLE: text}


def _credentials(spec: ServerSpec, resolver: _Resolver) -> tuple[dict[str, str], dict[str, str]]:
    """Return the headers and the pairs of the query that say who asks."""
    headers: dict[str, str] = {}
    query: dict[str, str] = {}
    cookies: list[str] = []
    for scheme, one in spec.security.items():
        text = resolver.value(f"security.{scheme}", one.value, True)
        match one.kind:
            case "bearer":
                headers["Authorization"] = f"Bearer {text}"
            case "basic":
                pair = f"{one.name}:{text}" if one.name else text
                encoded = base64.b64encode(pair.encode(errors="replace")).decode()
                resolver.secrets.add(f"Basic {encoded}")
                headers["Authorization"] = f"Basic {encoded}"
            case "header":
                headers[one.name] = text
            case "query":
                query[one.name] = text
            case "cookie":
                cookies.append(f"{one.name}={text}")
    if cookies:
        headers["Cookie"] = "; ".join(cookies)
    return headers, query


def _own_folder() -> Path:
    """Return where the vault, its key, the seal's key and API keys are by default."""
    return (Path.home() / ".leaseway").resolve()


def _is_own_key(name: str) -> bool:
    return name.startswith("LEASEWAY_") and "KEY" in name


def _refuse_own_key(name: str) -> None:
    if _is_own_key(name):
        raise _Missing(f"refers to {name}, a key of Leaseway's own, which is given to no server")


def _missing_fault(server: str, missing: list[tuple[str, str]]) -> Fault:
    parts = "; ".join(f"{key} {what}" for key, what in missing)
    return Fault(
        Reason.SERVER_NOT_READY,
        f"The server {server} can't start on this worker: {parts}.",
        metadata={
            "server": server,
            "problem": "MISSING_REFERENCE",
            "keys": ", ".join(key for key, _ in missing),
        },
    )
