"""Readers of the keys of `http_api` servers: tools, OpenAPI documents, credentials.

May import the other readers of keys and `config.openapi`; `keys` and `entries` import it.
"""
