"""The report's tabs of layers and ops."""

from perfnb.draw.tab import Tab
from perfnb.profile.layers import layers_data, layers_html, layers_text, ops_data

LAYERS = Tab(
    key="layers",
    title="Layers",
    shows=lambda report: report,
    text=lambda report, width: layers_text(report.summary, width),
    html=lambda report: layers_html(report.summary),
    data=lambda report: layers_data(report.summary),
    script="profile/js/layers.js",
)

#: The static twin has no room for ops; `Profile.ops` has them all.
OPS = Tab(
    key="ops",
    title="Ops",
    shows=lambda report: report,
    data=lambda report: ops_data(report.summary, report.op_places),
    script="profile/js/ops.js",
)
