"""Other clients' configuration files, put into native keys before anything is read.

Each format yields a tree with positions; `detection` says which one a file is in. Imports `tree`
and `schema`.
"""
