"""Vocabulary expansion of language models by self-distillation."""
