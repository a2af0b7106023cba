"""Layers of configuration: how system, domain and session files make one result.

Pure functions of parsed documents. Imports `schema` and `tree`; knows no file watcher.
"""
