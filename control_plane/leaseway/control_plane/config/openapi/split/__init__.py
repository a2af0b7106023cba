"""Documents that are split: where the others may be, and how they come into the first one.

Imports only the references and the servers of `openapi` beside it, and the readers of `tree`.
"""
