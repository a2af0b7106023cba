"""In-memory twins of the two seams: a server behind the instance port, a transport.

For tests; no part of the product imports them.
"""
