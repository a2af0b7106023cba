"""In-memory versions of the instance port and of a transport.

For tests; the product does not import them.
"""
