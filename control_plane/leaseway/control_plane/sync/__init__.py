"""The stream to each worker: deltas out, acknowledgements, probes and reports in.

Converts between protobuf and the core's values; decides nothing.
"""
