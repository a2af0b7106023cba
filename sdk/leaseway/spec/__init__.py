"""A server's specification as both planes know it: model, hashes, filters, references.

Pure but for `protobuf`. The SDK does not import it.
"""
