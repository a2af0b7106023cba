"""Tokens for remote servers: discovery, token requests, one request at a time.

`tokens` decides when a token is requested, on the loop; `obtaining` does it, in a thread, with
`metadata`, `requests` and `web`; `logins` has people log in. Imports `outgoing`, which declares
what a connection sees of it.
The protocol's rules are the official MCP package's (`mcp.client.auth`), signatures are joserfc's.

See design.md#tokens-for-remote-servers.
"""
