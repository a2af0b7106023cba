"""Authentication and authorization: API keys, JSON web tokens and client certificates.

Both planes and every HTTP listener use it: `Authenticator.principal` turns the headers and the
certificate of a request into a `Principal`, `rules` lists the roles for each RPC, and `interceptor`
applies both to gRPC. Imports only `wire`, `telemetry` and `vault`. The SDK never imports it: it
only sends credentials.
"""
