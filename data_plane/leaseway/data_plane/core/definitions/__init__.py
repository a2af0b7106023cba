"""Admits what servers list, as every MCP client reads it, and what they say when they are greeted.

Official clients reject a whole list for one definition that does not conform to MCP. Pure. Imports
nothing of the worker.
"""
