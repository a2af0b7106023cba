"""The specification of a server, shared by both planes: model, hashes, filters, references.

Pure except for `protobuf`. The SDK never imports it.
"""
