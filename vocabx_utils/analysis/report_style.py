"""The style sheet of the report: one column on a phone, two on a screen, light and dark by the reader's setting."""

from __future__ import annotations

__all__ = ["STYLE", "code_style"]

STYLE = """\
:root{--page:#fff;--ink:#1d2733;--soft:#5a6775;--line:#d9dfe5;--box:#f4f6f8;--link:#0b5cad}
@media (prefers-color-scheme:dark){
:root{--page:#12171d;--ink:#e4e9ee;--soft:#a9b4bf;--line:#323b45;--box:#1b222a;--link:#7cb8f5}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
a{color:var(--link)}
main{max-width:60rem;padding:1rem 1.2rem 3rem;min-width:0}
h1{font-size:1.7rem;line-height:1.25}h2{margin-top:2.2rem;border-bottom:1px solid var(--line)}
h1,h2,h3,p,li{overflow-wrap:anywhere}td{overflow-wrap:break-word}
.anchor-link{visibility:hidden;margin-left:.4rem;text-decoration:none}
:is(h1,h2,h3):hover .anchor-link{visibility:visible}
.side{border-bottom:1px solid var(--line);padding:.6rem 1.2rem;font-size:.92rem}
.side summary{cursor:pointer;font-weight:600}.side ul{padding-left:1.1rem;margin:.3rem 0}
.side .here>a{font-weight:700}
.steps{display:flex;justify-content:space-between;gap:1rem;font-size:.92rem;margin:.6rem 0;flex-wrap:wrap}
.contents p{margin:.1rem 0 .8rem;color:var(--soft)}
pre,code{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:.86em}
pre{margin:0;padding:.6rem .8rem;overflow-x:auto;line-height:1.4}
.highlight{background:var(--box);border:1px solid var(--line);border-radius:6px;margin:.7rem 0}
:not(pre)>code{background:var(--box);padding:0 .2em;border-radius:3px}
.jp-OutputArea-output,.output_area,.output_subarea,.rendered_html,.jp-RenderedHTMLCommon{overflow-x:auto;max-width:100%}
.jp-OutputPrompt,.jp-InputPrompt,.prompt{display:none}
.jp-OutputArea-output pre,.output_area pre{border-left:3px solid var(--line)}
img{max-width:100%;height:auto;background:#fff;border-radius:4px}
table{border-collapse:collapse;display:block;overflow-x:auto;max-width:100%;margin:.8rem 0;font-size:.9rem}
th,td{border:0;border-bottom:1px solid var(--line);padding:.25rem .6rem;text-align:left;vertical-align:top}
table.dataframe{border:0}.dataframe :is(th,td){text-align:right}.dataframe tbody th{text-align:left}
details{margin:.6rem 0}
blockquote{border-left:4px solid var(--link);margin:1rem 0;padding:.2rem 1rem;background:var(--box)}
.equation{overflow-x:auto;overflow-y:hidden;padding:.3rem 0}
.file{border-bottom:1px dotted var(--soft)}
@media (max-width:64rem){.side nav{max-height:40vh;overflow-y:auto}}
@media (max-width:40rem){.output_png img,.output_svg img{max-width:none}
.output_markdown table:not([style]) td,.text_cell table:not([style]) td,.text table td{min-width:6.5rem}
.output_markdown table:not([style]) td:last-child{min-width:15rem}}
@media (min-width:64rem){body{display:grid;grid-template-columns:17rem 1fr}
.side{border:0;border-right:1px solid var(--line);height:100vh;position:sticky;top:0;overflow-y:auto}
main{padding:1.4rem 2.4rem 4rem}}
@media print{.side,.steps{display:none}}
"""


def code_style() -> str:
    """Return the colours of code: pygments' `a11y`-like light style, and a dark one for dark mode."""
    from pygments.formatters import HtmlFormatter

    def rules(style: str) -> str:
        lines = HtmlFormatter(style=style).get_style_defs(".highlight").splitlines()
        return "\n".join(line for line in lines if line.startswith(".highlight ."))

    return f"{rules('xcode')}\n@media (prefers-color-scheme:dark){{\n{rules('github-dark')}\n}}\n"
