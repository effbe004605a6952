"""Reading GPUs: NVML on one daemon thread, and what is made of it."""
