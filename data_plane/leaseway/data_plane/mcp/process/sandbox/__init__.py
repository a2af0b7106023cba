"""The sandbox of a server's process: what it is shown, which system calls it has, its trial.

Never a server without its sandbox, if it was asked for. Knows nothing of MCP.
"""
