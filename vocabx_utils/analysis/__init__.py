"""The wing of notebook 06: what training did to the new rows, and what that does to the model.

Begin with `similarity`: where the rows point, by epoch (thesis, appendix A). Then

* `mechanisms`: norms, spread and sparsity of the change, and the causal test of a few coordinates;
* `divergence`: teacher and student on the same texts: KL by position, hidden states by layer, logit lens;
* `readings`: what the tables show, in sentences;
* `explorer`, `explorer_runs`, `explorer_view`: all of it for one token, as tables, of a run, as HTML and as widgets.

Everything takes tensors or the histories of `vocabx_utils.rows` and returns tables; `vocabx_utils.figures` draws them
and `vocabx_utils.claims` judges them.
"""
