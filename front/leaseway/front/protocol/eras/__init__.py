"""What newer protocol versions have, for clients of older ones: a module for each step back. Pure.

Imports `messages` only.
"""
