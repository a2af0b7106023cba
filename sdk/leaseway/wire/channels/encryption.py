"""Whether a request stays encrypted where it is sent on. Pure."""

from __future__ import annotations

from typing import Final

_ENCRYPTED: Final = ("https", "wss")


def leaves_encryption(source: str, target: str) -> bool:
    """Return whether a redirect, or an address that a server names, gives up encryption.

    Whoever is on the way of such a request could read and change it, although the first address
    promised that nobody can. Nothing in Leaseway follows it.

    Args:
        source: The scheme of the address that names the other one, in lower case.
        target: The scheme of the address that is named.
    """
    return source in _ENCRYPTED and target not in _ENCRYPTED
