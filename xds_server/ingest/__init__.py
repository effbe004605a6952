"""Telemetry in: agents' streams become samples that the brain can believe.

`decode.py` checks messages, `registry.py` decides who may speak for which instance (both pure);
`server.py` is the gRPC service.
"""
