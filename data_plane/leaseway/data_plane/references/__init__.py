"""Resolves {env}, {file} and {secret} references, and builds the environment of child processes.

Resolved values are redacted from all text that leaves the process.
"""
