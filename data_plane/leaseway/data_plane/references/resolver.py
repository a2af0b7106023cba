"""Resolves single references and variables, and collects secrets and missing references."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final, Protocol

from leaseway.data_plane.core.resolved_values import ResolvedValues, UnresolvedValue
from leaseway.data_plane.references.files import UnreadableFile, read_file
from leaseway.spec.lease_names import NAMES
from leaseway.spec.model import ServerSpec
from leaseway.spec.references import UnresolvedReference, Value, expand, references
from leaseway.vault.key import VaultError
from leaseway.wire.secrets.secret_names import is_secret_variable, looks_secret

_BREAKS: Final = "\r\n"
_MAX_VARIABLES: Final = 1_000
"""Variables of a file."""

_ENTRY: Final = re.compile(
    r"""[^\S\n]*
    (?:
        (?:export[^\S\n]+)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)[^\S\n]*=[^\S\n]*
        (?:
            (?: "(?P<double>(?:[^"\\]|\\.)*)" | '(?P<single>[^']*)' ) [^\S\n]*(?:\#[^\n]*)?
            | (?P<plain>(?!["'])[^\n]*)
        )
        | \#[^\n]*
    )?
    (?:\n|\Z)""",
    re.VERBOSE | re.DOTALL,
)
"""A variable with its value, a comment or an empty line."""
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}


class Vault(Protocol):
    """Secrets that are not in the environment."""

    def get(self, name: str) -> str | None:
        """Return a secret, or None if there is none of that name.

        Raises:
            VaultError: The vault cannot be read.
        """


class ReadValues(Protocol):
    """Reads the resolved values of a server, without blocking the loop."""

    async def __call__(
        self, spec: ServerSpec, environment: Mapping[str, str], vault: Vault, timeout: float
    ) -> ResolvedValues:
        """Return the values; see `kinds.values.read_references`."""


class _EmptyVault:
    def get(self, name: str) -> str | None:
        return None


NO_VAULT: Final[Vault] = _EmptyVault()


class MissingReference(UnresolvedValue):
    """A reference does not resolve.

    Args:
        problem: Completes "the key x ...".
        command: As given.

    Attributes:
        command: What an operator runs where workers run to set it, or empty.
    """

    def __init__(self, problem: str, command: str = "") -> None:
        super().__init__(problem)
        self.command = command


class BadEnvFile(ValueError):
    """A file of variables is invalid; the message completes "the file x, ..."."""


def parse_env_file(text: str) -> dict[str, str]:
    r"""Return the variables of a file of `NAME=VALUE` lines; the last of a name wins.

    `export` before a name, blank lines and comments are ignored. A value in quotes may have several
    lines. In single quotes it is literal; in double quotes `\n`, `\t`, `\r`, `\"` and `\\` are
    escapes; without quotes it ends at ` #`. Variables in values are not expanded.

    Raises:
        BadEnvFile: A line is not `NAME=VALUE`, or there are too many. The message has no value.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    variables: dict[str, str] = {}
    position = 0
    while position < len(text):
        entry = _ENTRY.match(text, position)
        if entry is None or "\0" in entry[0]:
            number = text.count("\n", 0, position) + 1
            raise BadEnvFile(f"whose line {number} is no NAME=VALUE, or has a quote without end")
        if entry["name"]:
            variables[entry["name"]] = _value_of(entry)
        position = entry.end()
    if len(variables) > _MAX_VARIABLES:
        raise BadEnvFile(f"which has more than {_MAX_VARIABLES} variables")
    return variables


def _value_of(entry: re.Match[str]) -> str:
    if (double := entry["double"]) is not None:
        return _ESCAPE.sub(lambda escape: _ESCAPES.get(escape[1], escape[1]), double)
    if (single := entry["single"]) is not None:
        return single
    return re.split(r"\s#", entry["plain"], maxsplit=1)[0].rstrip()


class Resolver:
    """Resolves the values of one server.

    Args:
        environment: The worker's environment, with marks for the names of a lease.
        known: The worker's environment.
        vault: Secrets that it does not have.
        confined_files: Files with the patterns of paths that are granted to them.
        on_open: Called with each file before it is opened.

    Attributes:
        known: The worker's environment.
        secrets: The secrets among the values.
        missing: Missing references, each with its key.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        known: Mapping[str, str],
        vault: Vault,
        confined_files: Mapping[str, Sequence[str]],
        on_open: Callable[[str], None],
    ) -> None:
        self._confined_files = confined_files
        self._on_open = on_open
        self._environment = environment
        self.known = known
        self._vault = vault
        self.secrets: set[str] = set()
        self.missing: list[tuple[str, str]] = []
        self.commands: list[str] = []
        """What an operator runs to set what is missing."""

    def value(self, key: str, value: Value, secret: bool) -> str:
        """Return a resolved value; record a missing reference under its key."""
        try:
            text = self.read(value)
        except MissingReference as missing:
            self._record(key, missing)
            return ""
        if secret or self._is_secret(value, text):
            self.secrets.add(text)
        return text

    def credential(self, key: str, value: Value, secret: bool) -> str:
        """Return a resolved value without line breaks at its end, as of a file.

        Whatever puts a secret into a variable seldom removes them, and no header may have them.
        """
        text = self.value(key, value, secret)
        bare = text.rstrip(_BREAKS)
        if bare != text:  # secrets are hidden as they are sent
            self.secrets.update(known.rstrip(_BREAKS) for known in tuple(self.secrets))
            self.secrets.discard("")
        return bare

    def _record(self, key: str, missing: MissingReference) -> None:
        self.missing.append((key, str(missing)))
        if missing.command:
            self.commands.append(missing.command)

    @staticmethod
    def _is_secret(value: Value, text: str) -> bool:
        match value.kind:
            case "literal":
                return False  # it is visible in the configuration
            case "env":
                return is_secret_variable(value.text, text)
            case _:
                return True

    def read(self, value: Value) -> str:
        """Return what a value is at this moment; blocks.

        Raises:
            MissingReference: It does not resolve.
        """
        return self._literal(value.text) if value.kind == "literal" else self._reference(value)

    def values(self, key: str, values: Mapping[str, Value]) -> dict[str, str]:
        """Return the resolved values of a mapping; names tell which of them are secrets."""
        return {
            name: self.value(f"{key}.{name}", value, looks_secret(name))
            for name, value in values.items()
        }

    def text(self, key: str, text: str, own: Container[str] = ()) -> str:
        """Return a plain string with its `${NAME}` expanded.

        Args:
            key: Its key.
            text: The string.
            own: The variables that the entry gives its server. Those that the worker does not have
                stay as they are written: the server can read them, and nobody in a process list.
        """
        try:
            return self._literal(text, own)
        except MissingReference as missing:
            self._record(key, missing)
            return ""

    def _literal(self, text: str, own: Container[str] = ()) -> str:
        try:
            expanded = expand(text, self._environment, own)
        except UnresolvedReference as error:
            _reject_own_key(error.name)
            raise MissingReference(
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
            raise MissingReference(
                f"refers to the environment variable {value.text}, which is not set: set it in "
                "the worker's environment"
            )
        return found

    def _from_vault(self, name: str) -> str:
        try:
            found = self._vault.get(name)
        except VaultError as error:
            raise MissingReference(
                f"refers to the secret {name}, which the worker's environment does not have, and "
                f"its vault cannot be read ({str(error).rstrip('.')})"
            ) from None
        if found is None:
            raise MissingReference(
                f"refers to the secret {name}, which neither the worker's environment nor its "
                "vault has: set it there",
                f"leaseway vault set {name}",
            )
        return found

    def texts(self, key: str, texts: Sequence[str], own: Container[str]) -> tuple[str, ...]:
        """Return the texts of a list with their `${NAME}` expanded, like `text`."""
        return tuple(self.text(f"{key}[{index}]", text, own) for index, text in enumerate(texts))

    def variables(self, key: str, path: str) -> dict[str, str]:
        """Return the variables of a file; record what is wrong with it."""
        try:
            found = parse_env_file(self._file(path))
        except MissingReference as missing:
            self._record(key, missing)
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
            raise MissingReference(f"refers to the file {path}, which {error}") from None
        return text.removesuffix("\n").removesuffix("\r")


def is_own_key(name: str) -> bool:
    return name.startswith("LEASEWAY_") and "KEY" in name


def _reject_own_key(name: str) -> None:
    if is_own_key(name):
        raise MissingReference(f"refers to {name}, a key of Leaseway's own: use another variable")
