"""Commands that run and stop processes: planes, workers, fronts, and all of them together.

The other groups never import this one.
"""
