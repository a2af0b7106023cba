"""Kinds of servers, as both planes know them: one module each, with the settings of its entries.

`table` finds the kind of an entry; `shared` has the settings that several kinds have. A module of a
kind imports these and the model, never another kind.
"""
