"""A gRPC server that echoes every message, as a lower bound.

Run as `python grpc_echo.py`; prints its address once it listens.
"""

import asyncio

import grpc

OPTIONS = [("grpc.max_receive_message_length", 2**22), ("grpc.max_send_message_length", 2**22)]


async def echo(request_iterator, context):
    """Echo each batch."""
    async for batch in request_iterator:
        yield batch


async def echo_once(message, context):
    """Echo a unary call."""
    return message


async def main():
    """Serve until killed."""
    server = grpc.aio.server(options=OPTIONS)
    handlers = {
        "Echo": grpc.stream_stream_rpc_method_handler(echo),
        "EchoOnce": grpc.unary_unary_rpc_method_handler(echo_once),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Floor", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    try:
        import uvloop
    except ModuleNotFoundError:
        asyncio.run(main())
    else:
        uvloop.run(main())
