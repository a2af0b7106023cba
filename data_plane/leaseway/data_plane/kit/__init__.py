"""The kit: an MCP server over stdio with tools for files, commands, web pages and the environment.

It runs as `python -m leaseway.data_plane.kit --tool NAME …`, or by a worker for `transport:
builtin`. Each tool is off unless it is named. It imports `leaseway.server`, `leaseway.spec` and
`leaseway.wire`, and nothing of the worker.
"""
