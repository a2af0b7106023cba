"""A worker's instruments and gauges.

Owners of state hand their readers in; nothing here reaches into them.
"""
