"""A worker's instruments and gauges.

The owners of a worker's state pass readers in; nothing here imports them.
"""
