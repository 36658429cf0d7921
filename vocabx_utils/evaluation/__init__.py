"""Notebook 05: benchmarks, generation, sandboxed execution and statistics."""
