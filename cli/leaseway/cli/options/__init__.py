"""Options and arguments that several commands share, with their checks.

Imports no command.
"""
