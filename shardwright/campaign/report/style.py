"""How the page looks: a phone, a wide screen, the dark, and paper. Colours are those of Okabe and Ito."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--ground:#fff;--link:#005a92;--panel:#f6f7f9;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;
--pass:#00614a;--pass-ground:#d5f0e6;--fail:#8f3600;--fail-ground:#fbe3d5;--open:#6b4e00;--open-ground:#fff1c9;
--none-ground:#e7eaee;--full:#56b4e9;--shared:#e7eaee;--orphan:#d55e00;--observed:#d55e00;--predicted:#0072b2}
@media (prefers-color-scheme:dark){:root{--ground:#12161b;--link:#7cc4f0;--panel:#1a2027;
--ink:#e8ecf0;--soft:#a4afba;--line:#38414b;
--pass:#6fdcb8;--pass-ground:#0f3d31;--fail:#ffb48a;--fail-ground:#4d2108;--open:#ffd970;--open-ground:#453504;
--none-ground:#2b333c;--shared:#38414b;--predicted:#56b4e9;--observed:#e69f00}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
main{max-width:76rem;margin:0 auto;padding:1rem}
h1{font-size:1.4rem;line-height:1.25;margin:0}
.title{display:flex;flex-wrap:wrap;align-items:center;gap:.5rem 1rem;margin:0 0 .5rem}
h2{font-size:1.1rem;margin:0 0 .75rem}
h3{font-size:1rem;margin:1rem 0 .5rem}
p,ul{margin:.5rem 0}
ul{padding-left:1.25rem}
section,header{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:1rem;margin:0 0 1rem}
header.pass{border-left:8px solid var(--pass)}
header.fail{border-left:8px solid var(--fail)}
header.open,header.none{border-left:8px solid var(--open)}
.badge{display:inline-block;padding:.05rem .5rem;border-radius:1rem;font-weight:600;font-size:.85rem;white-space:nowrap}
header .badge{font-size:1.4rem;padding:.15rem 1rem}
header>ul{font-size:1.05rem}
.badge.pass{color:var(--pass);background:var(--pass-ground)}
.badge.fail{color:var(--fail);background:var(--fail-ground)}
.badge.open{color:var(--open);background:var(--open-ground)}
.badge.none{color:var(--soft);background:var(--none-ground)}
.absent,.soft{color:var(--soft)}
.warning{color:var(--fail);font-weight:600}
.wide{overflow-x:auto;max-width:100%;margin:.5rem 0;container-type:inline-size}
@container (max-width:34rem){thead{display:none}tr{display:block;padding:.4rem 0;border-bottom:1px solid var(--line)}
table td{display:grid;grid-template-columns:6rem 1fr;gap:0 .5rem;border:0;padding:.05rem 0;text-align:left;
white-space:normal;overflow-wrap:anywhere}table td>*{grid-column:2;justify-self:start}
table td.n{display:inline-block;min-width:0;margin-right:1rem}table td:first-child{display:block;font-weight:600}
table td:empty{display:none}td::before{content:attr(data-label);color:var(--soft);margin-right:.4rem}
td:first-child::before,td[data-label=""]::before{content:none}td[data-label=""]{display:block}
td ul{padding-left:1.1rem}}
table{border-collapse:collapse;font-size:.9rem;width:100%}
th,td{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid var(--line);overflow-wrap:normal}
th{color:var(--soft);font-weight:600;vertical-align:bottom}
td{min-width:4rem}
td:first-child{white-space:nowrap}
td:last-child{min-width:8rem}
td ul{margin:0}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
th.n{text-align:right;white-space:normal}
code,pre{font:.85rem/1.45 ui-monospace,monospace}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.5rem 0}
summary{cursor:pointer;font-weight:600}
.asked{display:flex;flex-wrap:wrap;gap:0 .6rem;font-variant-numeric:tabular-nums}
.asked>span{white-space:nowrap}
.asked>span:first-child{min-width:4.4rem}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,15rem),1fr));gap:.5rem 1.5rem;margin:1rem 0 0;
font-size:.9rem}
dt{color:var(--soft);font-size:.8rem}
dd{margin:0}
nav{display:flex;flex-wrap:wrap;gap:.25rem 1.1rem;margin:0 .25rem 1rem;font-size:.9rem}
a{color:var(--link);text-underline-offset:.2em}
section:not(:has(>:not(h2,.absent))){display:flex;flex-wrap:wrap;gap:0 1rem;align-items:baseline;padding:.5rem 1rem}
section:not(:has(>:not(h2,.absent)))>*{margin:0}
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
.arms>div>h3{margin-top:0}
.maps{display:flex;align-items:flex-start;flex-wrap:wrap;gap:1rem 2.5rem;overflow-x:auto;max-width:100%}
.map{width:auto;border-collapse:separate;border-spacing:2px}
.map caption{text-align:left;font-weight:600;padding:0 0 .25rem}
.map th{border:0;padding:0 .4rem;text-align:right;font-weight:400;white-space:nowrap}
.map thead th{text-align:center}
.map td{border:0;border-radius:3px;padding:.15rem;min-width:2.3rem;text-align:center;font-size:.8rem}
figure{margin:1rem 0}
figcaption{font-weight:600;margin:0 0 .5rem}
.latency{--told:20rem}
.latency.two{--told:25.5rem}
.latency .row{display:grid;grid-template-columns:13rem 1fr var(--told);gap:.1rem .8rem;align-items:center;
margin:.4rem 0;font-size:.9rem}
.latency .value{display:grid;grid-template-columns:repeat(var(--columns),max-content);gap:0 .8rem;font-size:.85rem;
font-variant-numeric:tabular-nums}
.latency .value>div{display:contents}
.side::before{content:"";display:inline-block;width:.7em;height:.7em;margin-right:.4em;border-radius:2px}
.side.control::before{background:var(--predicted)}
.side.candidate::before{background:var(--observed)}
.spread{display:block;width:100%;height:2.6rem;background:var(--ground);border-radius:3px;overflow:visible}
.spread.two{height:4.6rem}
.spread path{vector-effect:non-scaling-stroke}
.spread .grid{stroke:var(--line);stroke-width:1}
.spread .base{stroke:var(--soft);stroke-width:1}
.spread .control{fill:var(--predicted)}
.spread .candidate{fill:var(--observed)}
.spread .at{stroke:var(--ink);stroke-width:2}
.spread .p95{stroke-dasharray:6 3;stroke-width:1.5}
.spread .p99{stroke-dasharray:2 3;stroke-width:1.5}
.scale{position:relative;height:1.4rem;margin:0 calc(var(--told) + .8rem) 0 13.8rem;font-size:.8rem;color:var(--soft)}
.scale span{position:absolute;white-space:nowrap;transform:translateX(-50%);font-variant-numeric:tabular-nums}
footer{color:var(--soft);font-size:.85rem}
@media (max-width:40rem){main{padding:.5rem}section,header{padding:.7rem}
.bar{grid-template-columns:1fr auto;gap:.1rem .6rem}.bar .track{grid-column:1/-1;grid-row:2}}
@media (max-width:60rem){.latency .row{grid-template-columns:1fr}
.latency .what{font-weight:600}.latency .value,.latency .value>div{display:flex;flex-wrap:wrap;gap:0 .8rem}
.latency .side{flex-basis:100%}
.latency .scale{margin:0}}
@media print{:root{color-scheme:light;--ground:#fff;--link:#005a92;--panel:#fff;--ink:#000;--soft:#444;--line:#bbb;
--pass:#00614a;--pass-ground:#fff;--fail:#8f3600;--fail-ground:#fff;--open:#6b4e00;--open-ground:#fff;--none-ground:#eee;
--shared:#eee;--predicted:#0072b2;--observed:#d55e00}
main{max-width:none;padding:0}.arms{display:block}.arms>div+div{margin-top:1rem}header,.stage,.bar,.row,.map,tr{break-inside:avoid}h2,h3{break-after:avoid}
section,header{border-radius:0}
nav{display:none}
.badge{border:1px solid}.wide,.maps{overflow:visible}
table{font-size:.75rem}th,td{padding:.2rem .35rem}td .badge{font-size:inherit;white-space:normal;border-radius:.6rem}
th,td,.n,td:first-child,td:last-child{white-space:normal;overflow-wrap:break-word;min-width:0}
td code{overflow-wrap:anywhere}
details::details-content{content-visibility:visible;block-size:auto}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
