"""Messages on the wire: batches, frames, parts, pages, events, references to artifacts.

Imports generated messages and the leaves of `wire`.
"""
