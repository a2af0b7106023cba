"""Resolves {env}, {file} and {secret} references, and builds the environment of child processes.

Also collects the resolved values, so that they are redacted from all text that leaves the process.
"""
