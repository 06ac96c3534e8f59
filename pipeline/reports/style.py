"""The style sheet of every report. Colours of series stay apart for colour-blind readers (after Okabe and Ito)."""

from __future__ import annotations

STYLE = """
:root {
  --ground: #ffffff; --text: #1b1f24; --quiet: #59626d; --edge: #d5dae0; --band: #f4f6f8;
  --good: #0b7a4b; --bad: #b3261e;
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #b05a8e; --s4: #a67c00; --s5: #3a8fc4; --s6: #5b5b5b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14171b; --text: #e6e9ec; --quiet: #9aa4af; --edge: #343b43; --band: #1d2127;
    --good: #4cc38a; --bad: #ff8a80;
    --s0: #4ea3dc; --s1: #f08a4b; --s2: #2fc79a; --s3: #d98cbc; --s4: #d8b13a; --s5: #8cc8ee; --s6: #a9a9a9;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 60rem; padding: 2rem 1.25rem 4rem; background: var(--ground); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 0.5rem; }
p { margin: 0.25rem 0 0.75rem; }
.subtitle, figcaption { color: var(--quiet); overflow-wrap: anywhere; }
.findings { list-style: none; margin: 1.5rem 0 0; padding: 1rem 1.25rem; background: var(--band); border-radius: 8px; }
.findings li { display: flex; gap: 0.6rem; margin: 0.25rem 0; overflow-wrap: anywhere; }
.mark { font-weight: 700; }
.good .mark { color: var(--good); }
.bad .mark { color: var(--bad); }
.plain .mark { color: var(--quiet); }
.wide { overflow-x: auto; margin-bottom: 1.25rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.4rem 0.7rem; border-bottom: 1px solid var(--edge); text-align: right; vertical-align: top; }
tbody td { white-space: nowrap; }
.prose th, .prose td { text-align: left; }
.prose td { white-space: normal; overflow-wrap: break-word; }
th:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--quiet); font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 600; }
figure { margin: 1rem 0 1.5rem; }
figcaption { font-size: 0.9rem; }
svg { display: block; width: 100%; height: auto; font-size: 13px; }
svg text { fill: var(--text); }
dl { display: grid; grid-template-columns: minmax(8rem, 14rem) 1fr; gap: 0.35rem 1rem; margin: 0.5rem 0; }
dt { font-weight: 600; }
dd { margin: 0; overflow-wrap: anywhere; }
.grid { stroke: var(--edge); stroke-width: 1; }
.axis, .whisker { stroke: var(--text); stroke-width: 1.5; }
.rule { stroke: var(--quiet); stroke-width: 1.5; stroke-dasharray: 4 3; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.fill.s0, .dot.s0 { fill: var(--s0); } .line.s0 { stroke: var(--s0); }
.fill.s1, .dot.s1 { fill: var(--s1); } .line.s1 { stroke: var(--s1); }
.fill.s2, .dot.s2 { fill: var(--s2); } .line.s2 { stroke: var(--s2); }
.fill.s3, .dot.s3 { fill: var(--s3); } .line.s3 { stroke: var(--s3); }
.fill.s4, .dot.s4 { fill: var(--s4); } .line.s4 { stroke: var(--s4); }
.fill.s5, .dot.s5 { fill: var(--s5); } .line.s5 { stroke: var(--s5); }
.fill.s6, .dot.s6 { fill: var(--s6); } .line.s6 { stroke: var(--s6); }
.dot { stroke: var(--ground); stroke-width: 1; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: 0.4rem; } }
@media print { body { max-width: none; padding: 0; } section { break-inside: avoid; } }
"""
