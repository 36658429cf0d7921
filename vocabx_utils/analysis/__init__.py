"""The wing of notebooks 06 and 07: what training did to the new rows and the model, and what many runs say together.

Begin with `similarity`: where the rows point, by epoch (thesis, appendix A). Then

* `mechanisms`: norms, spread and sparsity of the change, and the causal test of a few coordinates;
* `divergence`: teacher and student on the same texts: KL by position, hidden states by layer, logit lens;
* `readings`: what the tables show, in sentences;
* `explorer`, `explorer_runs`, `explorer_view`: all of it for one token, as tables, of a run, as HTML and as widgets.

Across runs: `collected` makes one tidy table of what they measured, and `seeds` tells methods from seeds in it.

Everything takes tensors, the histories of `vocabx_utils.rows` or tables, and returns tables; `vocabx_utils.figures`
draws them and `vocabx_utils.claims` judges them.
"""
