"""How JSON web tokens are signed and verified, with `joserfc`, by the names that issuers use."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from joserfc.errors import UnsupportedAlgorithmError
from joserfc.jws import JWSRegistry

from leaseway.wire import bounds


class Signatures(JWSRegistry):
    """The signature algorithms that a token may have.

    Members of its header that nobody here knows are ignored (RFC 7515, section 4): some issuers
    have their own.

    Args:
        algorithms: Their names.
    """

    max_header_length = max_payload_length = bounds.MIB  # whole tokens have a bound before

    def __init__(self, algorithms: Collection[str]) -> None:
        super().__init__(algorithms=algorithms, strict_check_header=False)

    def get_alg(self, name: str) -> Any:
        """Return an algorithm.

        `EdDSA`, the older name of `Ed25519`, causes no warning: many issuers know no other.

        Raises:
            UnsupportedAlgorithmError: It is none of them.
        """
        if not self.allowed or name not in self.allowed or name not in self.algorithms:
            raise UnsupportedAlgorithmError(f"Algorithm of '{name}' is not allowed")
        return self.algorithms[name]
