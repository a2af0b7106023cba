"""Use of the clients that were registered for earlier logins, of which no login needs one.

So what fails with them is a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from leaseway.data_plane.oauth.errors import AuthorizationError
from leaseway.data_plane.oauth.requests import OF_CLIENT
from leaseway.vault.clients import ClientStore
from leaseway.vault.key import VaultError

_logger = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def tried(work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
    """Return the result of work on kept clients; None, with a warning, if it fails."""
    try:
        return work(*args, **kwargs)
    except VaultError as error:
        _logger.warning("The registered clients cannot be read or changed: %s", error)
        return None


def forget_refused(
    error: AuthorizationError, store: ClientStore, authority: str, client_id: str
) -> bool:
    """Forget a client if an error refuses it; return whether it does, so that another may help.

    Args:
        error: The error.
        store: The kept clients.
        authority: The authorization server, as in `ClientKey`.
        client_id: The client.
    """
    if error.code not in OF_CLIENT:
        return False
    tried(store.forget, authority, client_id)
    return True
