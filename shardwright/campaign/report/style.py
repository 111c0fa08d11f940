"""How the page looks: a phone, a wide screen, the dark, and paper. Colours are those of Okabe and Ito."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--ground:#fff;--panel:#f6f7f9;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;
--pass:#00614a;--pass-ground:#d5f0e6;--fail:#8f3600;--fail-ground:#fbe3d5;--open:#6b4e00;--open-ground:#fff1c9;
--none-ground:#e7eaee;--full:#56b4e9;--shared:#e7eaee;--orphan:#d55e00;--observed:#e69f00;--predicted:#0072b2}
@media (prefers-color-scheme:dark){:root{--ground:#12161b;--panel:#1a2027;--ink:#e8ecf0;--soft:#a4afba;--line:#38414b;
--pass:#6fdcb8;--pass-ground:#0f3d31;--fail:#ffb48a;--fail-ground:#4d2108;--open:#ffd970;--open-ground:#453504;
--none-ground:#2b333c;--shared:#38414b;--predicted:#56b4e9}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
main{max-width:70rem;margin:0 auto;padding:1rem}
h1{font-size:1.25rem;margin:0 0 .25rem}
h2{font-size:1.1rem;margin:0 0 .75rem}
h3{font-size:1rem;margin:1rem 0 .5rem}
p,ul{margin:.5rem 0}
ul{padding-left:1.25rem}
section,header{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:1rem;margin:0 0 1rem}
header.pass{border-left:8px solid var(--pass)}
header.fail{border-left:8px solid var(--fail)}
header.open,header.none{border-left:8px solid var(--open)}
.badge{display:inline-block;padding:.05rem .5rem;border-radius:1rem;font-weight:600;font-size:.85rem;white-space:nowrap}
header .badge{font-size:1.3rem;padding:.2rem .9rem;margin:.25rem 0}
.badge.pass{color:var(--pass);background:var(--pass-ground)}
.badge.fail{color:var(--fail);background:var(--fail-ground)}
.badge.open{color:var(--open);background:var(--open-ground)}
.badge.none{color:var(--soft);background:var(--none-ground)}
.absent,.soft{color:var(--soft)}
.warning{color:var(--fail);font-weight:600}
.wide{overflow-x:auto;max-width:100%;margin:.5rem 0;container-type:inline-size}
@container (max-width:34rem){thead{display:none}tr{display:block;padding:.4rem 0;border-bottom:1px solid var(--line)}
table td{display:block;border:0;padding:.05rem 0;text-align:left;white-space:normal;overflow-wrap:anywhere}
table td.n{display:inline-block;min-width:0;margin-right:1rem}table td:first-child{font-weight:600}
table td:empty{display:none}td::before{content:attr(data-label) " ";color:var(--soft);margin-right:.4rem}
td[data-label=""]::before{content:none}td ul{padding-left:1.1rem}}
table{border-collapse:collapse;font-size:.9rem;width:100%}
th,td{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid var(--line);overflow-wrap:normal}
th{color:var(--soft);font-weight:600;white-space:nowrap}
td{min-width:4rem}
td:first-child{white-space:nowrap}
td:last-child{min-width:8rem}
td ul{margin:0}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
th.n{text-align:right}
code,pre{font:.85rem/1.45 ui-monospace,monospace}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.5rem 0}
summary{cursor:pointer;font-weight:600}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem .8rem;margin:.5rem 0 0;font-size:.9rem}
dt{color:var(--soft)}
dd{margin:0}
.bar{display:grid;grid-template-columns:10rem 1fr 13rem;gap:.6rem;align-items:center;margin:.25rem 0;font-size:.9rem}
.bar .value{font-variant-numeric:tabular-nums}
.track{height:.9rem;background:var(--none-ground);border-radius:3px;display:block;position:relative}
.fill{display:block;height:100%;border-radius:3px}
.fill.predicted{background:var(--predicted)}
.fill.observed{background:repeating-linear-gradient(90deg,var(--observed) 0 5px,transparent 5px 7px)}
.mark{position:absolute;top:-3px;bottom:-3px;width:3px;margin-left:-1px;background:var(--ink)}
.span{position:absolute;top:0;bottom:0;background:var(--predicted);border-radius:3px}
.stage{border:1px solid var(--line);border-radius:6px;padding:.5rem;margin:.4rem 0}
.stage.tight{border:2px solid var(--ink)}
.stage h4{margin:0 0 .4rem;font-size:.9rem}
.boundary{display:flex;align-items:center;gap:.6rem;color:var(--soft);font-size:.85rem}
.boundary::before,.boundary::after{content:"";flex:1;border-top:2px dashed var(--line)}
.layers{display:flex;flex-wrap:wrap;gap:2px}
.layer{width:1.35rem;height:1.35rem;border-radius:3px;font-size:.7rem;line-height:1.35rem;text-align:center;
background:var(--shared);color:var(--ink)}
.layer.full{background:var(--full);color:#000}
.layer.orphan{color:#000;font-weight:700;
background:repeating-linear-gradient(45deg,#f5a26a 0 4px,#ffd9bf 4px 8px);outline:2px solid var(--orphan)}
.legend{display:flex;flex-wrap:wrap;gap:.3rem 1rem;font-size:.85rem;margin:.6rem 0 0}
.legend span.layer{display:inline-block;margin-right:.35rem}
.arms{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr))}
.arms>div{min-width:0}
.picture{overflow-x:auto;max-width:100%}
.picture svg{display:block;border-radius:4px}
footer{color:var(--soft);font-size:.85rem}
@media (max-width:40rem){main{padding:.5rem}section,header{padding:.7rem}
.bar{grid-template-columns:1fr auto;gap:.1rem .6rem}.bar .track{grid-column:1/-1;grid-row:2}}
@media print{:root{color-scheme:light;--ground:#fff;--panel:#fff;--ink:#000;--soft:#444;--line:#bbb;--pass:#00614a;
--pass-ground:#fff;--fail:#8f3600;--fail-ground:#fff;--open:#6b4e00;--open-ground:#fff;--none-ground:#eee;
--shared:#eee;--predicted:#0072b2}
main{max-width:none;padding:0}.arms{display:block}header,.stage,.bar,tr{break-inside:avoid}h2,h3{break-after:avoid}
section,header{border-radius:0}
.badge{border:1px solid}.wide,.picture{overflow:visible}
th,td,.n,td:first-child{white-space:normal;overflow-wrap:break-word;min-width:0}td code{overflow-wrap:anywhere}
details::details-content{content-visibility:visible;block-size:auto}.picture svg{max-width:100%;height:auto}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
