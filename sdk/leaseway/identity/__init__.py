"""Who calls: API keys, JSON web tokens and client certificates, each a way to one `Principal`.

Both planes and every HTTP listener check with it: `Authenticator.principal` turns the headers and
the certificate of a request into who sent it, `rules` says which RPC wants which role, and
`interceptor` holds both for gRPC. It imports `wire` and `vault` (for files) only. The SDK never
imports this package: it only sends what it was given.
"""
