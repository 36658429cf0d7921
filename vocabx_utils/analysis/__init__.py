"""Notebook 06: similarity, mechanisms, figures and the reading copy."""
