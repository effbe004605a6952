"""`python -m xds_server` is `xds-server`."""

from __future__ import annotations

from xds_server.cli import main

if __name__ == "__main__":
    main()
