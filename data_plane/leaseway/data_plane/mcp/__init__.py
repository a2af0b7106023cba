"""MCP connections: processes, transports, negotiation, and the instances made of them.

Calls go over our own lean wire, bytes in and bytes out; handshake and listing use the official
package's `ClientSession` on the same connection (DESIGN §§6, 9).
"""
