"""A report with a timeline as one page, and a model that may answer as a kernel does."""

from __future__ import annotations

import base64

from perfnb.draw import escape
from perfnb.draw.live import assets_of, live_data
from perfnb.profile.report import report_document
from perfnb.profile.summary import Summary
from tests import summaries
from tests.timeline import timeline_samples

_STYLE = (
    "body{margin:0;background:light-dark(#fff,#16181d);font-family:system-ui}"
    "main{max-width:1480px;margin:0 auto;padding:20px}"
)

_START = """
const decoded = (id) => {
  const text = atob(document.getElementById(id)?.textContent ?? "");
  return new DataView(Uint8Array.from(text, (letter) => letter.charCodeAt(0)).buffer);
};
const data = document.getElementById("perfnb-data").textContent;
const timeline = decoded("perfnb-timeline");
const heard = [];
window.sent = [];
const model = {
  get: (key) => (key === "timeline" ? timeline : data),
  on: (word, listener) => heard.push([word, listener]),
  send: (content) => window.sent.push(content),
};
window.answer = () => {
  const whole = decoded("perfnb-whole");
  for (const [word, listener] of heard) if (word === "msg:custom") listener({ timeline: "whole" }, [whole]);
};
window.again = () => documentWidget.render({ model, el: document.querySelector("main").appendChild(h("div")) });
documentWidget.render({ model, el: document.getElementById("perfnb-report") });
"""


def page_with(timeline: bytes, whole: bytes = b"", summary: Summary | None = None, before: str = "") -> str:
    """Return the report of `summary` with `timeline`; `whole` is what a kernel would answer, `before` a script run
    first.
    """
    document = report_document(summary or summaries.small_cnn(), None, timeline_samples.facts_of(timeline))
    data = escape.json_in_script(live_data(document, "report"))
    script, style = assets_of(document)
    script = script.replace("export default documentWidget;\n", "") + _START
    held = "".join(
        f'<script type="application/octet-stream" id="{name}">{base64.b64encode(content).decode()}</script>'
        for name, content in (("perfnb-timeline", timeline), ("perfnb-whole", whole))
    )
    return (
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>timeline</title>'
        f"<style>:root{{color-scheme:light dark}}{_STYLE}{style}</style>"
        '<main><div id="perfnb-report"></div></main>'
        f'<script type="application/json" id="perfnb-data">{data}</script>{held}'
        f"<script>{before}</script><script type='module'>{script}</script></html>"
    )
