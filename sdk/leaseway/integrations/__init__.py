"""Tools for agent frameworks: a module for each, which imports its framework and `leaseway.sdk`.

Each has one function that takes tools, as `list_tools` returns them, and the client or session to
call them with.
"""
