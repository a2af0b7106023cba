"""Child processes: launch, limits, sandbox, stderr, and the reaper that leaves none behind.

Knows nothing of MCP.
"""
