"""Images and sounds of results: taken out, stored on disk, served over HTTP.

Imports `core` and `background`; never `calls`.
"""
