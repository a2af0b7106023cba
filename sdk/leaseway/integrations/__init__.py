"""Tools for agent frameworks: one module for each, based on the framework and `leaseway.sdk`.

Each module has one function. It accepts tools from `list_tools` and the client or session that
calls them, and returns the framework's tool objects. Never imports a plane.
"""
