"""The live page: HTML, CSS and JavaScript as they are served, and nothing else."""
