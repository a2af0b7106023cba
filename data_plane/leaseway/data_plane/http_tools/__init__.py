"""Servers of the transport `http_api`: each tool is one HTTP request, no MCP server takes part.

An `HttpInstance` stands behind the same instance port as an MCP client, so that leases, limits,
listings and calls see no difference. It may import the core, references, specs and templates.
"""
