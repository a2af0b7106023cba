"""Child processes: launch, limits, sandbox, containers, stderr, and the reaper.

Imports nothing of MCP.
"""
