"""Every picture of the series: the only wing that imports matplotlib.

- `catalogue`: which figures there are, and the loop behind `vocabx figures RUN`, which draws them again. Begin here.
- `theme`: colours, markers and lines, fixed bytes, alternative texts: `theme`, `save_figure`, `show_figure`.
- `losses`, `gains`, `tradeoff`, `rows`, `changes`, `results`: by epoch; what phase 1 gains; what a share of
  cross-entropy buys; where learned rows point; what their change does; of evaluations.
- `patterns`: what a chart shows, in a sentence for its alternative text.
- `seeds`: runs that differ in their seed.
- `strips`: two tokenizations of one text as data, HTML and characters; `strip_pictures` draws them for papers.
- `diagrams`: drawings that need no data.

A `*_chart` takes tables or arrays, and axes where it may stand beside others; it returns the axes and never saves. A
`draw_*` of `losses`, `gains`, `tradeoff`, `rows`, `changes`, `results` and `seeds` returns a whole figure with its
alternative text.
"""
