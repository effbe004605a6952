"""The brain: from samples to a plan of weights. Pure, standard library only.

Read `evaluate.py` first. Time is an argument (monotonic seconds), randomness is an argument, and
nothing here performs I/O.
"""
