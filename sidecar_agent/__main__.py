"""`python -m sidecar_agent`."""

from __future__ import annotations

from sidecar_agent.cli import main

if __name__ == "__main__":
    main()
