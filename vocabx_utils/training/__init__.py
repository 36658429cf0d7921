"""Notebooks 03 and 04: learning the new rows, then fine-tuning."""
