"""A package that brings a kind of server: greeters, whose only tool greets in their language."""
