"""The probe: a sidecar that is none, connected to istiod, that reads back what sidecars are told.

istiod accepts whatever a config source or the API server gives it, also what it will not use: only what arrives
at a sidecar proves anything.
"""
