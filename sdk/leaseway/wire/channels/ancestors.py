"""A mark in the environment that shows a Leaseway that it was started by itself.

A configuration can name, through any wrapper, the very command that reads it. Each Leaseway below
a worker would then start all servers again, and itself. So planes mark their children with what
they serve, and a command that finds itself in the mark does not start.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from leaseway.wire.channels.endpoint import Endpoint

VARIABLE: Final = "_LEASEWAY_WITHIN"
"""Set for planes and, by workers, for their servers, whatever those inherit."""

META_KEY: Final = "leaseway/controlPlane"
"""In the `_meta` of a front's handshake: the digest of its control plane's address."""

MAX_DEPTH: Final = 4
"""Leaseways that may run below one another: wrappers can give each one another configuration."""


def of_files(paths: Iterable[Path]) -> str:
    """Return the token of a Leaseway that reads these files."""
    names = "\n".join(sorted(os.path.realpath(path) for path in paths))
    return f"files-{hashlib.sha256(names.encode(errors='surrogatepass')).hexdigest()[:16]}"


def of_address(address: Endpoint) -> str:
    """Return the token of the control plane at an address."""
    return f"at-{address}"


def digest(token: str) -> str:
    """Return what a front says of its control plane: enough to recognise it, and no address."""
    return hashlib.sha256(token.encode()).hexdigest()[:32]


def digests(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the digests of all Leaseways that this process runs below, or is part of."""
    return frozenset(digest(token) for token in environment.get(VARIABLE, "").split())


def contains(environment: Mapping[str, str], token: str) -> bool:
    """Return whether this process runs below the Leaseway of a token, or too deep."""
    tokens = environment.get(VARIABLE, "").split()
    depth = sum(token.startswith("files-") for token in tokens)
    return token in tokens or (token.startswith("files-") and depth >= MAX_DEPTH)


def extended(environment: Mapping[str, str], token: str) -> dict[str, str]:
    """Return the variable for processes that start below the Leaseway of a token."""
    tokens = [*environment.get(VARIABLE, "").split(), token]
    return {VARIABLE: " ".join(dict.fromkeys(tokens))}


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable for a server's process; empty if there is none."""
    found = environment.get(VARIABLE)
    return {VARIABLE: found} if found else {}
