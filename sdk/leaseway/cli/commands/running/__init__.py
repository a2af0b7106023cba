"""Commands that run processes of Leaseway: planes, workers, fronts, and all of them together.

They show what `operating` reads; the other groups never import this one.
"""
