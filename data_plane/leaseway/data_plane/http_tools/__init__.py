"""Servers with `transport: http_api`: each tool is an HTTP request, without an MCP server.

`HttpInstance` implements the same port as an MCP client, so leases, limits, listings and calls
treat both alike. Imports the core, references, specs and templates.
"""
