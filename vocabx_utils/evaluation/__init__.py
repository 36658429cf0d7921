"""Benchmarks, answers, the sandbox, and what the results show (notebook 05).

The way of one answer: `prompts` -> `generation` (a model's answers; `decoding` and `slots` below) -> `answers` (reply
to code; `statements` below) -> `samples` (the file) -> `execution` (programs in the sandbox, one line of `results`
each) -> `scoring` and `failures` (tables). Begin with `generation.sample_answers` and `evaluate.evaluate_answers`.

What is asked: `benchmarks` (`benchmark_rows` reads them), and the `kept` lists of problems whose reference passes,
which `references` makes. What is evaluated: `contenders`; `contamination` compares training pairs with the problems,
`likelihood` needs no answers. The sandbox: `programs` -> `sandbox` -> `jails` -> `jail` and `jailed` (inside it) ->
`outcomes`; `selftest` runs `hostile` programs first; `environments` are the Pythons in which answers run.
"""
