"""New tokens, and texts under the old and the new tokenizer (notebooks 01 and 02). Begin with `extend` and `alignment`.

* `spelling`, `encoding`: how a tokenizer spells text; ids and byte ends of texts.
* `options`, `wordtable`, `continued_bpe`, `proposals`: which tokens a corpus offers, by the thesis's way and by ours.
* `phrases`, `phrase_choice`: tokens that cross words, and which of them the finished tokenizer really produces.
* `extend`: a tokenizer extended by chosen or given tokens, with `mergeplan` (their merges in order), `surgery` (the
  tokenizer rebuilt so that no id moves) and `checks` (every token can be produced, every text comes back).
* `tokens`: the `Extension` that comes out, and its files. `audit`, `comparison`: what it does to text.
* `alignment`: one text under both tokenizers, paired where both have read the same bytes (`boundaries`; `walk` where
  added tokens shift spaces). `lookahead`: the thesis's own algorithm, and where it goes wrong.
* `initialization`: first values of the new rows. `splits`: the corpus of a run, split and written.
"""
