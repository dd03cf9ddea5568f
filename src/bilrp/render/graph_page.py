"""A self-contained page of a graph: the network on a canvas, reasons of its edges, and the parts that items share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from bilrp.io import files
from bilrp.render import page

_PAGE_CSS = """
:root{--paper:#fdfcfa;--ink:#1c1b1a;--soft:#625e58;--rule:#dcd8d1;--faint:#f3f0eb;--edge:#8d867c;--accent:#c3161a;--age0:#0b3c74;--age1:#2a67a8;--age2:#3f86c8;--age3:#4f9f8f;--age4:#6b8f2a;color-scheme:light}
@media (prefers-color-scheme:dark){:root{--paper:#161514;--ink:#efece7;--soft:#aaa49b;--rule:#3a3733;--faint:#24211f;--edge:#8a847b;--accent:#ff6b78;--age0:#a9cdf7;--age1:#7fb2ee;--age2:#5f9be0;--age3:#5fc0ac;--age4:#b4d26a;color-scheme:dark}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 "Inter","Helvetica Neue","Segoe UI",system-ui,sans-serif}
main{display:flex;flex-direction:column;height:100vh;height:100dvh}
header{padding:16px 22px 10px;border-bottom:1px solid var(--rule)}
h1{font:600 22px/1.25 "Iowan Old Style","Charter","Georgia","DejaVu Serif",serif;margin:0;overflow-wrap:anywhere}
h2{font-size:17px;line-height:1.35;font-weight:600;margin:8px 0;overflow-wrap:anywhere}
h3{font-size:14px;font-weight:600;margin:14px 0 4px}
p{margin:4px 0;color:var(--soft)}
.columns{display:grid;grid-template-columns:minmax(0,1fr) minmax(300px,400px);flex:1;min-height:0}
.stage{display:flex;flex-direction:column;min-height:0;min-width:0}
canvas{flex:1;min-height:0;width:100%;touch-action:none;cursor:grab}
canvas.over{cursor:pointer}
canvas:focus-visible,button:focus-visible,input:focus-visible{outline:2px solid var(--accent);outline-offset:-2px}
.tools{display:flex;gap:8px;padding:10px 14px 0}
button,input{font:inherit;color:inherit;background:var(--paper);border:1px solid var(--rule);border-radius:6px;padding:6px 12px;min-height:36px}
input{flex:0 1 220px;min-width:0}
.tools button{flex:none}
button{cursor:pointer}
button[aria-pressed=true]{background:var(--ink);color:var(--paper)}
aside{border-left:1px solid var(--rule);overflow:auto;padding:12px 18px 28px;overflow-wrap:anywhere}
ol,ul{list-style:none;margin:0;padding:0}
li{border-top:1px solid var(--rule)}
button.row{display:block;width:100%;text-align:left;border:0;border-radius:0;padding:9px 2px;background:none}
button.row:hover{background:var(--faint)}
.row b{font-weight:500}
.row span,figcaption span,li>span{display:block;color:var(--soft);font-size:13px}
ol.spread{counter-reset:n}
ol.spread li{border-top:0;border-left:3px solid var(--edge);padding-left:10px;margin-left:4px}
ol.spread li:first-child{border-left-color:var(--accent)}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:12px;margin:8px 0}
figure{margin:0;min-width:0}
figcaption{font-size:13px}
img{display:block;max-width:100%;height:auto;border:1px solid var(--rule);background:#fff}
.picture{position:relative;width:fit-content;max-width:100%}
.picture svg{position:absolute;inset:0;width:100%;height:100%}
rect{fill:none;stroke:var(--accent);stroke-width:2.5}
blockquote{margin:0 0 6px;padding:6px 10px;border-left:3px solid var(--rule)}
.pair.tall{grid-template-columns:minmax(0,1fr)}
.key{display:flex;flex-wrap:wrap;gap:2px 18px;padding:8px 16px 0;font-size:13px}
.key i{display:inline-block;width:9px;height:9px;border-radius:50%;margin:0 2px}
.age0{background:var(--age0)}.age1{background:var(--age1)}.age2{background:var(--age2)}.age3{background:var(--age3)}.age4{background:var(--age4)}
.key i:first-of-type{margin-left:6px}
.key i:last-of-type{margin-right:6px}
.numbers{overflow-x:auto;margin:8px 0 18px}
.numbers table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:14px}
.numbers td{padding:1px 7px 1px 0;vertical-align:top}
.changed .pair{margin:0}
.changed li{padding:8px 0}
.changed b{display:block;font-size:17px;font-weight:500;font-variant-numeric:tabular-nums}
.changed span{font-size:13px;color:var(--soft)}
mark{background:var(--accent);color:var(--paper);border-radius:2px;padding:0 1px}
noscript p{padding:40px}
@media (max-width:760px){.columns{grid-template-columns:minmax(0,1fr);grid-template-rows:minmax(0,55fr) minmax(0,45fr)}aside{border-left:0;border-top:1px solid var(--rule)}header{padding:10px 14px 8px}header p{font-size:13px}}
"""  # noqa: E501
_START_SCRIPT = """
graph(document.querySelector("main"), JSON.parse(document.querySelector("script[type='application/json']").textContent));
"""


def render_html(data: Mapping[str, object]) -> str:
    """Return the page of the data of `bilrp.collection.graph_payload.build_payload` as one string."""
    return page.build_document(
        data, title=str(data["title"]), entry="graph", start=_START_SCRIPT, css=_PAGE_CSS
    )


def write(data: Mapping[str, object], path: str | os.PathLike[str]) -> Path:
    """Write the page to `path` atomically."""
    return files.write_bytes(Path(path), render_html(data).encode("utf-8"))
