"""What there is and where it leads: lists, names resolved, versions, providers' forms.

Imports transport.
"""
