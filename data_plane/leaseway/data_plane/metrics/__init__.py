"""The metric instruments of a worker.

The owners of a worker's state pass in functions that read it; this package never imports them.
"""
