"""The report's tab of findings."""

from perfnb.draw.tab import Tab
from perfnb.findings.data import findings_data
from perfnb.findings.view import findings_html, findings_text

TAB = Tab(
    key="findings",
    title="Findings",
    shows=lambda report: None if report.summary.findings is None else report,
    text=lambda report, width: findings_text(report.summary.findings, width),
    html=lambda report: findings_html(report.summary.findings),
    data=lambda report: findings_data(report.summary.findings, report.layer_places, report.op_places),
    script="findings/js/findings.js",
    style="findings/js/findings.css",
    upfront=True,
)
