"""Commands that run processes of Leaseway: planes, workers, fronts, or all of them together.

Imports `operating`; the other groups never import this one.
"""
