"""The report's tab of the timeline."""

from perfnb.draw.tab import Tab
from perfnb.timeline.view import timeline_html, timeline_text

TAB = Tab(
    key="timeline",
    title="Timeline",
    shows=lambda report: report if report.timeline is not None or report.timeline_facts is not None else None,
    text=lambda report, width: timeline_text(report.timeline, width),
    html=lambda report: timeline_html(report.timeline),
    # The events travel beside the data, as bytes.
    data=lambda report: None if report.timeline_facts is None else dict(report.timeline_facts),
    script="timeline/js/timeline.js",
    style="timeline/js/timeline.css",
)
