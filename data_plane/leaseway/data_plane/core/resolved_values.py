"""The configuration of a server with its references resolved."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, NamedTuple

from leaseway.data_plane.core.proxies import NO_PROXIES, Proxies
from leaseway.spec.lease_names import LeaseNames

_MIN_RANDOM: Final = 8
"""Characters of a secret that is hidden in definitions."""
_PLACE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|[./~]")
_MIN_SECRET: Final = 4
"""Characters; shorter values are not hidden, because that would garble every text."""

_SALT: Final = secrets.token_bytes(32)
"""Makes digests meaningless outside of this process."""


class UnresolvedValue(Exception):
    """A value cannot be resolved; the text says what is missing and what to do."""


class SentCredential(NamedTuple):
    """A credential as requests have it; its representation does not contain it."""

    position: Literal["header", "query", "cookie"]
    name: str
    value: str

    def __repr__(self) -> str:
        return f"the {self.position} {self.name}"


@dataclass(frozen=True)
class ResolvedValues:
    """The values that a server gets. The representation contains none of them."""

    command: str = field(default="", repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)
    url: str = field(default="", repr=False)
    session_id: str = field(default="", repr=False)
    image: str = field(default="", repr=False)
    cwd: str = field(default="", repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    credentials: Mapping[str, SentCredential] = field(default_factory=dict, repr=False)
    """The credentials of requests, by the name that tools choose them by."""
    code: str = field(default="", repr=False)
    """A digest of the modules of a `python` server, if people may edit them."""
    modules: tuple[Path, ...] = field(default=(), repr=False, compare=False)
    """The files of these modules."""
    auth: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The client's id and credentials at its authorization server."""
    assertion: Callable[[], str] | None = field(default=None, repr=False, compare=False)
    """Reads who the workload is, for its authorization server; blocks, may raise `UnresolvedValue`.
    No part of the digest: the server does not get it, so that connections stay when it changes."""
    proxies: Proxies = field(default=NO_PROXIES, repr=False)
    """How its HTTP requests leave the worker."""
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Values to hide in the server's output."""
    hidden: object = field(default=None, repr=False, compare=False)
    """Keeps the secrets out of the worker's log while these values are in use."""

    @cached_property
    def digest(self) -> str:
        """A digest of all values that the server gets."""
        texts = (self.command, self.image, self.url, self.session_id, self.cwd, self.code)
        credentials = sorted(self.credentials.items())
        content: tuple[object, ...] = (self.args, *texts, *_pairs(self), credentials)
        if self.proxies.fixed is not None:  # the environment does not change
            proxy = self.proxies.fixed
            content = (*content, (proxy.url, proxy.username, proxy.password))
        encoded = json.dumps(content).encode()
        return hmac.new(_SALT, encoded, hashlib.sha256).hexdigest()

    def for_lease(self, names: LeaseNames) -> ResolvedValues:
        """Return the values of one instance, with the names of its lease filled in."""
        args = tuple(names.fill(text) for text in self.args)
        env = {name: names.fill(text) for name, text in self.env.items()}
        cwd = names.fill(self.cwd)
        if (args, env, cwd) == (self.args, self.env, self.cwd):
            return self
        return replace(self, args=args, env=env, cwd=cwd)

    def without_secrets(self, text: str) -> str:
        """Return a text with the secrets replaced by `[hidden]`."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            if len(secret) >= _MIN_SECRET:
                text = text.replace(secret, "[hidden]")
        return text

    def without_secrets_in_definitions(self, text: str) -> str:
        """Return a definition with the secrets replaced by `[hidden]`.

        Words, numbers, paths and addresses stay: a definition needs such values (`production` may
        be a choice), and whatever is referenced counts as secret.
        """
        for secret in self._distinctive:
            text = text.replace(secret, "[hidden]")
        return text

    @cached_property
    def _distinctive(self) -> tuple[str, ...]:
        return tuple(sorted(filter(_is_random, self.secrets), key=len, reverse=True))

    def differs(self, other: ResolvedValues | None) -> bool:
        """Return whether `other` is given and has other values."""
        return other is not None and other.digest != self.digest


def _is_random(secret: str) -> bool:
    """Return whether a value is no word, number, path or address."""
    if len(secret) < _MIN_RANDOM or _PLACE.match(secret) is not None:
        return False
    return any(map(str.isdigit, secret)) and any(map(str.isalpha, secret))


def _pairs(resolved: ResolvedValues) -> Iterator[list[tuple[str, str]]]:
    for mapping in (resolved.env, resolved.headers, resolved.auth):
        yield sorted(mapping.items())
