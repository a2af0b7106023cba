"""An authorization server that exchanges the tokens of callers, with the server that it guards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web
from tests.data_plane.oauth.guarded import Guarded

EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
TYPE: Final = "urn:ietf:params:oauth:token-type:"


class Issuer(Guarded):
    """Guards a server; exchanges the tokens of callers, as an identity provider does, too.

    Attributes:
        refused_tokens: Subject tokens that are not accepted.
        grants_scopes: Whether it grants the scope `more`.
        whose: The subject token of each access token that it exchanged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answer = self.issue
        self.refused_tokens: set[str] = set()
        self.grants_scopes = True
        self.whose: dict[str, str] = {}

    async def issue(self, form: Mapping[str, str]) -> web.Response:
        subject = form.get("subject_token") or form.get("assertion", "").removeprefix("jag-")
        if subject in self.refused_tokens:
            said = {"error": "invalid_grant", "error_description": f"not accepted: {subject}"}
            return web.json_response(said, status=400)
        if not self.grants_scopes and "more" in form.get("scope", ""):
            return web.json_response({"error": "invalid_scope"}, status=400)
        if form.get("requested_token_type") == f"{TYPE}id-jag":
            issued = {"issued_token_type": f"{TYPE}id-jag", "token_type": "N_A"}
            return web.json_response({"access_token": f"jag-{subject}", **issued})
        response = self.grant(form)
        self.whose[list(self.accepted)[-1]] = subject
        return response

    def name_of(self, token: str) -> str:
        return self.whose.get(token, "")
