"""What the references of a server's configuration stood for when they were read."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

_MIN_SECRET: Final = 4
"""Characters; to hide what is shorter would garble every text."""

_SALT: Final = secrets.token_bytes(32)
"""So that a digest says nothing outside of this process."""


@dataclass(frozen=True)
class ResolvedValues:
    """What a server gets. Its representation holds no values."""

    command: str = field(default="", repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)
    url: str = field(default="", repr=False)
    session_id: str = field(default="", repr=False)
    image: str = field(default="", repr=False)
    cwd: str = field(default="", repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    credentials: frozenset[str] = field(default=frozenset(), repr=False)
    """Names of the headers that carry credentials; anonymous requests go without."""
    query: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to the address of each HTTP request, as the last step before it is sent."""
    code: str = field(default="", repr=False)
    """A digest of the modules of a `python` server, where they are some that people edit."""
    modules: tuple[Path, ...] = field(default=(), repr=False, compare=False)
    """Their files."""
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Values to hide from whatever the server prints."""
    hidden: object = field(default=None, repr=False, compare=False)
    """Keeps them out of the worker's log lines as long as a reading is in use."""

    @cached_property
    def digest(self) -> str:
        """Of all that the server gets: two readings with the same digest are the same."""
        texts = (self.command, self.image, self.url, self.session_id, self.cwd, self.code)
        content = (self.args, *texts, *_pairs(self))
        encoded = json.dumps(content).encode()
        return hmac.new(_SALT, encoded, hashlib.sha256).hexdigest()

    def without_secrets(self, text: str) -> str:
        """Return a text that somebody wrote who knows the values, without the secret ones."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            if len(secret) >= _MIN_SECRET:
                text = text.replace(secret, "[hidden]")
        return text

    def differs(self, other: ResolvedValues | None) -> bool:
        """Return whether another reading is there and has other values."""
        return other is not None and other.digest != self.digest


def _pairs(resolved: ResolvedValues) -> Iterator[list[tuple[str, str]]]:
    for mapping in (resolved.env, resolved.headers, resolved.query):
        yield sorted(mapping.items())
