"""In-memory implementations of the instance port and of a transport.

For tests; product code never imports them.
"""
