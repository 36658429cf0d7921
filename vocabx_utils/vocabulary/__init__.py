"""Notebooks 01 and 02: new tokens, alignment, initial values and token pictures."""
