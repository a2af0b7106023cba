"""The kit: an MCP server over stdio with files, commands, web pages, variables and the time.

Started as `python -m leaseway.data_plane.kit --tool NAME …`, or by a worker for `transport:
builtin`; each tool is off until it is named. It is a server like any other: it knows
`leaseway.server`, which runs it, and nothing of the worker.
"""
