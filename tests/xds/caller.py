"""A gRPC application that finds its servers by xDS: `python -m tests.xds.caller xds:///chat`.

Calls as fast as it is answered, and prints who answered whenever that changes. The bootstrap comes from
GRPC_XDS_BOOTSTRAP_CONFIG, which gRPC reads once per process: hence a process of its own.
"""

from __future__ import annotations

import sys
import time

import grpc

METHOD = "/test.Echo/Who"


def main() -> None:
    last = b""
    with grpc.insecure_channel(sys.argv[1]) as channel:
        who = channel.unary_unary(METHOD)
        while True:
            try:
                answer = who(b"", timeout=10, wait_for_ready=True)
            except grpc.RpcError as error:
                answer = f"error {error.code()}: {error.details()}".encode()
            if answer != last:
                sys.stdout.write(answer.decode() + "\n")
                sys.stdout.flush()
                last = answer
            time.sleep(0.002)


if __name__ == "__main__":
    main()
