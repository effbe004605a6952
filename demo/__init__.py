"""The incident on one machine: simulated engines, a load generator, and the play that uses them.

Not part of the distribution. `python -m demo` plays the incident, `python -m demo.engine` is one
simulated engine, `python -m demo.load` sends requests.
"""
