"""Images and audio of results: extracted, stored on disk, served over HTTP.

Imports `core` and `background`; never calls.
"""
