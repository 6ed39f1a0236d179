"""The report's tab of the roofline."""

from perfnb.draw.tab import Tab
from perfnb.roofline.data import roofline_data
from perfnb.roofline.view import roofline_html, roofline_text

TAB = Tab(
    key="roofline",
    title="Roofline",
    shows=lambda report: report.summary.roofline,
    text=roofline_text,
    html=roofline_html,
    data=roofline_data,
    script="roofline/js/roofline.js",
)
