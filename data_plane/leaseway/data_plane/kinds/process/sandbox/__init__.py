"""The sandbox of a process: visible files, allowed system calls, and a check that it works.

A server that is configured with a sandbox never runs without one. Never imports any part of MCP.
"""
