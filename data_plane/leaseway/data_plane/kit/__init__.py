"""The kit: an MCP server over stdio with tools for files, commands, web pages and variables.

It runs as `python -m leaseway.data_plane.kit --tool NAME …`, or as a child of a worker for
`transport: builtin`. Each tool is off until it is named. Imports `leaseway.server`, `leaseway.spec`
and `leaseway.wire`; nothing of the worker.
"""
