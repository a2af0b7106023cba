"""What goes over the wire: batches, frames, parts, pages, events, references to artifacts.

It imports generated messages and the leaves of `wire`.
"""
