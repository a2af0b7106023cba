"""Messages on the wire: batches, frames, parts, pages, events, references to artifacts.

Imports generated messages and modules of `wire`; never a service.
"""
