"""Signatures of the variants that workers are sent (HMAC-SHA256 over their content).

A restarted control plane restores its last known good state from its workers
(design.md#sync). A rogue
worker could send any command, so only variants with a valid signature are restored. Workers store
the signatures; callers, servers and workers do not have the key.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from leaseway.v1 import sync_pb2
from leaseway.vault.private_file import PrivateFileError, locked, read_private, write_private
from leaseway.wire.channels.auth import SEAL_KEY_VARIABLE

_MIN_KEY: Final = 16
_MAX_KEY: Final = 1024
_logger = logging.getLogger(__name__)


class Seal:
    """Signs variants and checks signatures.

    Args:
        key: At least 16 random bytes, equal in all control planes of a deployment.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def generate(cls) -> Seal:
        """Return a seal of this process alone."""
        return cls(secrets.token_bytes(32))

    def sign(self, upsert: sync_pb2.Upsert) -> sync_pb2.Upsert:
        """Sign a variant in place and return it."""
        upsert.seal = self._signature(upsert)
        return upsert

    def is_valid(self, upsert: sync_pb2.Upsert) -> bool:
        """Return whether a control plane with the same key signed this variant."""
        return hmac.compare_digest(upsert.seal, self._signature(upsert))

    def _signature(self, upsert: sync_pb2.Upsert) -> bytes:
        content = sync_pb2.Upsert(
            spec=upsert.spec, hashes=upsert.hashes, toolset=upsert.toolset
        ).SerializeToString(deterministic=True)
        return hmac.digest(self._key, content, hashlib.sha256)


def find_seal(environment: Mapping[str, str], path: Path) -> Seal:
    """Return the seal of a deployment.

    Args:
        environment: The key is its LEASEWAY_SEAL_KEY, if set.
        path: Otherwise the key file, which is created if it does not exist. If that fails, a
            warning is logged and a random key is used, which is lost at exit.

    Raises:
        ValueError: LEASEWAY_SEAL_KEY has fewer than 16 characters.
    """
    key = environment.get(SEAL_KEY_VARIABLE, "")
    if key:
        if len(key) < _MIN_KEY:
            raise ValueError(
                f"{SEAL_KEY_VARIABLE} has {len(key)} characters; it needs at least {_MIN_KEY}."
            )
        return Seal(key.encode())
    try:
        return Seal(_read_or_create_key(path))
    except PrivateFileError as error:
        _logger.warning(
            "The state of workers cannot be restored after a restart: %s Set %s, equal for all "
            "control planes of this deployment.",
            error,
            SEAL_KEY_VARIABLE,
        )
        return Seal(secrets.token_bytes(32))


def _read_or_create_key(path: Path) -> bytes:
    key = read_private(path, _MAX_KEY)
    if key is None:
        with locked(path):
            key = read_private(path, _MAX_KEY)
            if key is None:
                key = secrets.token_urlsafe(32).encode()
                write_private(path, key)
    if len(key) < _MIN_KEY:
        raise PrivateFileError(f"{path} contains no key; remove it to create a new one.")
    return key
