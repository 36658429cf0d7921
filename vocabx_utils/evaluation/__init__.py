"""Notebook 05: benchmarks, generation and sandboxed execution."""
