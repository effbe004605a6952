"""gRPC over HTTP/2, framed here: just enough of it, for the one service of ours that requests wait for.

grpc.aio spends a millisecond of CPU on a request's exchange of ten messages; this spends a fifth (`benchmarks/endpoint_picker.py`).
"""
