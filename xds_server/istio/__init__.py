"""What an Istio mesh is told: the same plan by other ways than xDS to our own proxies.

Every way has a room of its own and reads the same values: `mesh.py` (what of ours is which host of the
mesh) and `weights.py` (what share each of them gets). `parts.py` starts those that are configured.
"""
