"""Admits what servers list, as every MCP client reads it.

Official clients reject a whole list for one definition that does not conform to MCP. Pure. Imports
nothing of the worker.
"""
