"""Servers of the transport `http_api`: each tool is an HTTP request, without an MCP server.

An `HttpInstance` implements the same instance port as an MCP client, so that leases, limits,
listings and calls treat both alike. Imports the core, references, specs and templates.
"""
