"""The callers' own tokens, for servers that act for whoever calls.

Only the newest token of a subject counts. See design.md#tokens-for-remote-servers.
"""

from __future__ import annotations

from collections import OrderedDict

from leaseway.spec.model import VariantKey
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.secrets.redaction import Hidden, hide
from leaseway.wire.secrets.secret_names import secret_forms


class CallerTokens:
    """The newest token of each subject of a server: the last 4,096 that were used.

    They are redacted in all texts while they are here.
    """

    def __init__(self) -> None:
        self._tokens: OrderedDict[VariantKey, tuple[str, Hidden]] = OrderedDict()

    def give(self, key: VariantKey, token: str) -> None:
        """Use a token for a subject's requests from now on.

        Raises:
            Fault: INVALID_REQUEST: it can be no token.
        """
        known = self._tokens.get(key)
        if known is not None and known[0] == token:
            self._tokens.move_to_end(key)
            return
        check_caller_token(token)
        self._tokens[key] = (token, hide(secret_forms((token,))))
        self._tokens.move_to_end(key)
        while len(self._tokens) > bounds.MAX_OAUTH_GRANTS:
            self._tokens.popitem(last=False)

    def of(self, key: VariantKey) -> str:
        """Return the token of a subject, or empty for none."""
        known = self._tokens.get(key)
        return known[0] if known is not None else ""


def check_caller_token(token: str) -> None:
    """Refuse a text that can be no token.

    Raises:
        Fault: INVALID_REQUEST. The message does not repeat it.
    """
    if len(token) > bounds.MAX_OAUTH_TOKEN or not all(
        "!" <= character <= "~" for character in token
    ):
        raise Fault(
            Reason.INVALID_REQUEST,
            f"subject_token is no token: it has at most {bounds.MAX_OAUTH_TOKEN} characters, all of"
            " them printable ASCII without spaces.",
        )
