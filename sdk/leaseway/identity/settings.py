"""The identity file (TOML), which lists the credentials that a plane accepts.

keys = "keys.json"

[[jwt]]
issuer = "https://login.example"
audience = "leaseway"
jwks = "https://login.example/keys"
tenant_claim = "tenant"

[introspection]
issuer = "https://login.example"
audience = "leaseway"
client_id = "leaseway"
client_secret_file = "introspection-secret"

[[mtls]]
match = "spiffe://prod/ns/{tenant}/sa/{agent}"
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from leaseway.identity.certificates import CertificateRule, check_rule
from leaseway.identity.introspection import AUTH_METHODS, Introspection
from leaseway.identity.principal import (
    ALL_ROLES,
    SYSTEM_ROLES,
    Role,
    check_name,
    check_scope,
    parse_roles,
)
from leaseway.identity.tokens import Issuer, issuer_key
from leaseway.wire import bounds
from leaseway.wire.channels.endpoint import is_protected
from leaseway.wire.names import nearest
from leaseway.wire.secrets.trusted_files import UntrustedFile, check_secret, read_trusted

MAX_IDENTITY_FILE: Final = 1 * bounds.MIB
_MAX_TABLES: Final = 256
_MAX_AUDIENCES: Final = 16
_MAX_SCOPES: Final = 32
_SCOPE: Final = re.compile(r"[!#-\[\]-~]+")
"""RFC 6749, section 3.3."""
_MAX_TEXT: Final = 2048
_MIN_SECONDS: Final = 1.0
_MAX_SECONDS: Final = 366 * 24 * 3600.0


class IdentityFileError(Exception):
    """The identity file cannot be used; the message names the file and the place."""


@dataclass(frozen=True)
class IdentitySettings:
    """The accepted credentials.

    Attributes:
        keys: The API key file, or None.
        issuers: The trusted token issuers.
        certificates: The rules for client certificates.
        introspection: The authorization server that knows opaque tokens, or None.
    """

    keys: Path | None = None
    issuers: tuple[Issuer, ...] = ()
    certificates: tuple[CertificateRule, ...] = ()
    introspection: Introspection | None = None

    def __bool__(self) -> bool:
        """Whether any credential is accepted: else callers need none (`Authenticator.is_open`)."""
        return self != _NO_CREDENTIALS


_NO_CREDENTIALS: Final = IdentitySettings()


def read_identity_file(path: Path) -> IdentitySettings:
    """Read an identity file; relative paths in it are relative to its folder.

    Raises:
        IdentityFileError: It cannot be read, other users can change it, or it is invalid.
    """
    try:
        content = read_trusted(path, MAX_IDENTITY_FILE)
        if len(content) > MAX_IDENTITY_FILE:
            raise IdentityFileError(f"{path} is larger than {MAX_IDENTITY_FILE} bytes.")
        document = tomllib.loads(content.decode())
    except UntrustedFile as error:
        raise IdentityFileError(str(error)) from None
    except OSError as error:
        raise IdentityFileError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise IdentityFileError(f"{path} is not TOML: {error}.") from None
    try:
        return _settings(document, path.parent)
    except ValueError as error:
        raise IdentityFileError(f"{path}: {error}") from None


def _settings(document: Mapping[str, Any], folder: Path) -> IdentitySettings:
    _check_keys("", document, ("keys", "jwt", "introspection", "mtls"))
    keys = document.get("keys")
    if keys is not None and not (isinstance(keys, str) and keys):
        raise ValueError("keys: write a path.")
    tables = document.get("jwt", [])
    opaque = document.get("introspection")
    named = tables if isinstance(tables, list) else []
    named = [table for table in (*named, opaque) if isinstance(table, dict)]
    is_only_one = len({issuer_key(str(table.get("issuer"))) for table in named}) == 1
    issuers = _tables(document, "jwt", partial(_issuer, folder=folder, is_only_one=is_only_one))
    names = [issuer_key(issuer.issuer) for issuer in issuers]
    if len(set(names)) < len(names):
        raise ValueError("jwt: two tables name the same issuer.")
    introspection = None
    if opaque is not None:
        try:
            introspection = _introspection(opaque, folder, is_only_one)
        except ValueError as error:
            raise ValueError(f"[introspection]: {error}") from None
    _check_users([*issuers, *([introspection.issuer] if introspection is not None else [])])
    rules = _tables(document, "mtls", _rule)
    return IdentitySettings(
        keys=None if keys is None else _path("keys", keys, folder),
        issuers=tuple(issuers),
        certificates=tuple(rules),
        introspection=introspection,
    )


def _check_users(issuers: Sequence[Issuer]) -> None:
    """Check that no issuer can give the name of another one's user.

    Raises:
        ValueError: Two can.
    """
    for first, second in combinations([issuer for issuer in issuers if issuer.user_claim], 2):
        is_apart = None not in (first.tenant, second.tenant) and first.tenant != second.tenant
        is_one = issuer_key(first.issuer) == issuer_key(second.issuer)
        prefixes = sorted((first.user_prefix, second.user_prefix), key=len)
        if not is_apart and not is_one and prefixes[1].startswith(prefixes[0]):
            raise ValueError(
                f"The issuers {first.issuer} and {second.issuer} may have different users of "
                "the same name: give each a user_prefix of its own, such as user_prefix = 'a:'."
            )


def _tables(
    document: Mapping[str, Any], name: str, parse: Callable[[dict[str, Any]], Any]
) -> list[Any]:
    tables = document.get(name, [])
    if not isinstance(tables, list) or len(tables) > _MAX_TABLES:
        raise ValueError(f"{name}: write at most {_MAX_TABLES} tables, each headed [[{name}]].")
    parsed = []
    for number, table in enumerate(tables, start=1):
        try:
            if not isinstance(table, dict):
                raise ValueError(f"write it as a table, headed [[{name}]].")
            parsed.append(parse(table))
        except ValueError as error:
            raise ValueError(f"[[{name}]] number {number}: {error}") from None
    return parsed


_ISSUER_KEYS: Final = tuple(item.name for item in fields(Issuer) if item.name != "is_only_one")
_ISSUER_SECONDS: Final = ("refresh", "stale_after")


_CLAIM_KEYS: Final = tuple(name for name in _ISSUER_KEYS if name not in ("jwks", *_ISSUER_SECONDS))
_OPAQUE_KEYS: Final = (
    "client_id",
    "client_secret_file",
    "client_secret_env",
    "endpoint",
    "auth_method",
)


def _introspection(table: object, folder: Path, is_only_one: bool) -> Introspection:
    if not isinstance(table, dict):
        raise ValueError("write one table; tokens say nothing of whom to ask among several.")
    _check_keys("", table, (*_CLAIM_KEYS, *_OPAQUE_KEYS))
    claims = {name: value for name, value in table.items() if name in _CLAIM_KEYS}
    if "audience" not in claims:
        raise ValueError(
            "audience is missing; write [] if the server calls only those tokens active that are "
            "for this client."
        )
    _require(table, "issuer", "client_id")
    audience = () if claims["audience"] == [] else _audience(claims["audience"])
    issuer = _issuer_of(claims, is_only_one, audience)
    texts = {name: _text(name, table[name]) for name in _OPAQUE_KEYS if name in table}
    endpoint, method = texts.get("endpoint", ""), texts.get("auth_method", AUTH_METHODS[0])
    name, asked = ("endpoint", endpoint) if endpoint else ("issuer", issuer.issuer)
    if not is_protected(asked):
        raise ValueError(f"{name}: '{asked[:200]}' is not protected in transit; use https.")
    if method not in AUTH_METHODS:
        raise ValueError(f"auth_method: write {' or '.join(AUTH_METHODS)}.")
    secret, path = _secret(texts, folder)
    return Introspection(
        issuer=issuer,
        client_id=texts["client_id"],
        client_secret=secret,
        endpoint=endpoint,
        auth_method=method,
        secret_file=path,
    )


def _secret(texts: Mapping[str, str], folder: Path) -> tuple[str, Path | None]:
    """Return the client's secret, and the file that it is from, or None."""
    file, variable = texts.get("client_secret_file"), texts.get("client_secret_env")
    if (file is None) == (variable is None):
        raise ValueError("give either client_secret_file or client_secret_env.")
    if file is None:
        assert variable is not None  # or else the file is given
        secret = os.environ.get(variable, "").strip()
        if not secret:
            raise ValueError(f"client_secret_env: the variable {variable} is not set.")
        return secret, None
    path = _path("client_secret_file", file, folder)
    try:
        with path.open("rb") as opened:
            check_secret(opened.fileno(), path)
            secret = opened.read(_MAX_TEXT + 1).decode().strip()
    except UntrustedFile as error:
        raise ValueError(f"client_secret_file: {error}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ValueError(f"client_secret_file: {path} cannot be read: {reason}.") from None
    if not secret or len(secret) > _MAX_TEXT:
        raise ValueError(f"client_secret_file: {path} needs 1 to {_MAX_TEXT} characters.")
    return secret, path


def _require(table: Mapping[str, Any], *names: str) -> None:
    for required in names:
        if required not in table:
            raise ValueError(f"{required} is missing.")


def _issuer(table: Mapping[str, Any], folder: Path, is_only_one: bool) -> Issuer:
    _check_keys("", table, _ISSUER_KEYS)
    _require(table, "issuer", "audience", "jwks")
    issuer = _issuer_of(table, is_only_one, _audience(table["audience"]))
    return replace(issuer, jwks=_jwks(issuer.jwks, folder))


def _issuer_of(table: Mapping[str, Any], is_only_one: bool, audience: tuple[str, ...]) -> Issuer:
    texts = {
        name: _text(name, value)
        for name, value in table.items()
        if name not in (*_ISSUER_SECONDS, "roles", "audience", "scopes")
    }
    if "tenant" in texts:
        check_name("tenant", texts["tenant"])
        if "tenant_claim" in texts:
            raise ValueError("give either tenant or tenant_claim.")
    if not is_only_one:  # the subjects of several issuers may be equal
        texts.setdefault("user_claim", "")
    texts.setdefault("jwks", "")
    roles = _issuer_roles(table)
    times = {name: _seconds(name, table[name]) for name in _ISSUER_SECONDS if name in table}
    return Issuer(  # the names of texts and times are the attributes'
        **texts,  # type: ignore[arg-type]
        **times,  # type: ignore[arg-type]
        roles=roles,
        audience=audience,
        scopes=_scopes(table.get("scopes", [])),
        is_only_one=is_only_one,
    )


def _audience(value: object) -> tuple[str, ...]:
    """Return the audiences of which a token needs one."""
    if not isinstance(value, list):
        return (_text("audience", value),)
    if not 0 < len(value) <= _MAX_AUDIENCES:
        raise ValueError(f"audience: write a text, or a list of 1 to {_MAX_AUDIENCES}.")
    return tuple(_text("audience", item) for item in value)


def _scopes(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _MAX_SCOPES:
        raise ValueError(f"scopes: write a list of at most {_MAX_SCOPES}.")
    scopes = tuple(_text("scopes", item) for item in value)
    if not all(_SCOPE.fullmatch(scope) for scope in scopes):
        raise ValueError("scopes: a scope has no space, quotation mark or backslash.")
    return scopes


def _issuer_roles(table: Mapping[str, Any]) -> frozenset[Role]:
    """Return the roles that an issuer may give.

    Raises:
        ValueError: They are invalid, or reach beyond the issuer's tenant.
    """
    tenant = table.get("tenant")
    if "roles" not in table:
        return ALL_ROLES if tenant is None else ALL_ROLES - SYSTEM_ROLES
    roles = _roles(table["roles"])
    if not roles:
        raise ValueError("roles: name at least one.")
    check_scope(roles, tenant)
    return roles


def _roles(value: object) -> frozenset[Role]:
    if not isinstance(value, list) or not all(isinstance(role, str) for role in value):
        raise ValueError("roles: write a list of names.")
    return parse_roles(value)


def _jwks(location: str, folder: Path) -> str:
    if "://" not in location:
        return str(_path("jwks", location, folder))
    if not is_protected(location):
        raise ValueError(
            f"jwks: '{location[:200]}' is not protected in transit; use https, or a file."
        )
    return location


def _rule(table: Mapping[str, Any]) -> CertificateRule:
    _check_keys("", table, ("match", "tenant", "agent", "user", "roles"))
    if "match" not in table:
        raise ValueError("match is missing.")
    roles = _roles(table.get("roles", [Role.CALLER.value]))
    names = {
        what: check_name(what, _text(what, table[what]))
        for what in ("tenant", "agent", "user")
        if what in table
    }
    rule = CertificateRule(_text("match", table["match"]), roles, **names)
    check_rule(rule)
    return rule


def _check_keys(where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            near = nearest(key[:64], known, limit=1)
            hint = f" Did you mean '{near[0]}'?" if near else f" Known keys: {', '.join(known)}."
            raise ValueError(f"{where}'{key[:64]}' is unknown.{hint}")


def _path(name: str, text: str, folder: Path) -> Path:
    """Return a path, of which a relative one is below a folder."""
    if "\0" in text:
        raise ValueError(f"{name}: write a path; it has a character that no path may have.")
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"{name}: {text[:200]} names no known user's home folder.") from None


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > _MAX_TEXT:
        raise ValueError(f"{name}: write a string of 1 to {_MAX_TEXT} characters.")
    return value


def _seconds(name: str, value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not _MIN_SECONDS <= value <= _MAX_SECONDS
    ):
        raise ValueError(
            f"{name}: write a number of seconds, from {_MIN_SECONDS:g} to {_MAX_SECONDS:.0f}."
        )
    return float(value)
