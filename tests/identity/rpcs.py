"""Every RPC of the protocol."""

from __future__ import annotations

from leaseway.v1 import admin_pb2, catalog_pb2, execution_pb2, leases_pb2, sync_pb2

SERVICES = [
    service
    for module in (admin_pb2, catalog_pb2, execution_pb2, leases_pb2, sync_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for service in SERVICES
    for method in service.methods
}
