"""Servers that are a command of the worker, and the processes of other kinds."""
