"""Tools for agent frameworks: one module for each, which imports its framework and `leaseway.sdk`.

Each has one function: it takes tools, as `list_tools` returns them, and the client or session that
calls them, and returns the framework's own tool objects.
"""
