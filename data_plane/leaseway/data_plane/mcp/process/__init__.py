"""Child processes: launch, limits, sandbox, containers, stderr, and the reaper.

Never imports `protocol` or any other part of MCP.
"""
