"""The seal on what workers are sent: state that a worker brings back must be of this deployment.

A control plane that restarts learns the last good state from its workers (DESIGN §8). Whoever joins
as a worker could bring any command along, so the control plane signs each variant that it sends
(HMAC-SHA256 over its content), workers keep the signature with the content, and only content with a
signature that holds is taken back. Callers, servers and workers do not have the key.
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

SEAL_KEY_VARIABLE: Final = "LEASEWAY_SEAL_KEY"
_SHORTEST: Final = 16
_LONGEST: Final = 1024
_logger = logging.getLogger(__name__)


class Seal:
    """Signs variants and checks signatures.

    Args:
        key: At least 16 random bytes, the same in all control planes of a deployment.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def stamp(self, upsert: sync_pb2.Upsert) -> sync_pb2.Upsert:
        """Sign a variant, in place, and return it."""
        upsert.seal = self._signature(upsert)
        return upsert

    def holds(self, upsert: sync_pb2.Upsert) -> bool:
        """Return whether a variant is as a control plane with the same key has sent it."""
        return hmac.compare_digest(upsert.seal, self._signature(upsert))

    def _signature(self, upsert: sync_pb2.Upsert) -> bytes:
        content = sync_pb2.Upsert(
            spec=upsert.spec, hashes=upsert.hashes, toolset=upsert.toolset
        ).SerializeToString(deterministic=True)
        return hmac.digest(self._key, content, hashlib.sha256)


def find_seal(environment: Mapping[str, str], path: Path) -> Seal:
    """Return the seal of a deployment.

    Args:
        environment: Its LEASEWAY_SEAL_KEY is the key, where it is set.
        path: Else the file with the key, which is made if it does not exist. Where it cannot be
            read or made, the key is a random one of this process, and the log says so.

    Raises:
        ValueError: LEASEWAY_SEAL_KEY has fewer than 16 characters.
    """
    given = environment.get(SEAL_KEY_VARIABLE, "")
    if given:
        if len(given) < _SHORTEST:
            raise ValueError(f"{SEAL_KEY_VARIABLE} has {len(given)} characters; 16 are the least.")
        return Seal(given.encode())
    try:
        return Seal(_key_of(path))
    except PrivateFileError as error:
        _logger.warning(
            "What workers hold is not taken over after a restart: %s Set %s, the same for all "
            "control planes of this deployment.",
            error,
            SEAL_KEY_VARIABLE,
        )
        return Seal(secrets.token_bytes(32))


def _key_of(path: Path) -> bytes:
    key = read_private(path, _LONGEST)
    if key is None:
        with locked(path):
            key = read_private(path, _LONGEST)
            if key is None:
                key = secrets.token_urlsafe(32).encode()
                write_private(path, key)
    if len(key) < _SHORTEST:
        raise PrivateFileError(f"{path} holds no key; remove it, and a new one is made.")
    return key
