"""The sandbox of a server's process: visible files, allowed system calls, and a check of it all.

A server that is configured with a sandbox never runs without it. Imports nothing of MCP.
"""
