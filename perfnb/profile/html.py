"""The report as HTML without scripts, readable even without styles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfnb import quantities as fmt
from perfnb.draw import escape, palette, tables
from perfnb.draw.frame import framed
from perfnb.findings.view import verdict_html
from perfnb.profile.noise import notes_of
from perfnb.profile.report import Report
from perfnb.profile.summary import Summary
from perfnb.profile.text import headline_facts

if TYPE_CHECKING:
    from perfnb.timeline.timeline import Timeline


def summary_html(summary: Summary, timeline: Timeline | None = None) -> str:
    """Return the report as HTML without scripts, for GitHub, exports and untrusted notebooks.

    The outer element has the class ``perfnb-static``.
    """
    tabs = [tab.html(part) for tab, part in Report(summary, timeline).shown_static() if tab.html]
    return framed("".join([_headline(summary), _phases(summary), *tabs, _notes(summary)]))


def _headline(summary: Summary) -> str:
    step, *facts = headline_facts(summary)
    what = f"<strong>{escape.html(summary.name)}</strong> · {escape.html(summary.device)}"
    verdict = "<br>" if summary.findings is None else f'</p>{verdict_html(summary.findings)}<p class="pf-head">'
    rest = "".join(f"<br>{escape.html_sentence(fact)}" for fact in facts)
    return f'<p class="pf-head">{what}{verdict}<strong class="pf-step">{escape.html_sentence(step)}</strong>{rest}</p>'


def _phases(summary: Summary) -> str:
    shown = [(str(name), row) for name, row in summary.phases.iterrows() if (fmt.known(row["ms"]) or 0) > 0]
    if not shown:
        return ""
    parts = [(palette.mark(name), max(0.0, fmt.known(row["share"]) or 0.0)) for name, row in shown]
    bar = tables.full_bar(parts, sum(share for _, share in parts) or 1.0)
    rows = [
        (tables.keyed(palette.mark(name)), fmt.duration(row["ms"]), escape.html(fmt.share(row["share"])))
        for name, row in shown
    ]
    caption = f"Phases of a traced step ({fmt.duration(summary.traced_ms)})"
    return bar + tables.table(caption, ["phase", "time", "share"], rows)


def _notes(summary: Summary) -> str:
    items = "".join(f"<li>{escape.html_sentence(note)}</li>" for note in notes_of(summary))
    return f"<p><strong>Notes</strong></p><ul>{items}</ul>" if items else ""
