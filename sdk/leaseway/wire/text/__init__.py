"""Text for people: sizes as they write them, known names like theirs, untrusted text made visible.

Imports modules of `wire`; never a service or a plane. Pure.
"""
