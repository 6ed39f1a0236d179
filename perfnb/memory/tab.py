"""The report's tab of memory."""

from perfnb.draw.tab import Tab
from perfnb.memory.data import memory_data
from perfnb.memory.view import memory_html, memory_text

TAB = Tab(
    key="memory",
    title="Memory",
    shows=lambda report: report.summary.memory,
    text=memory_text,
    html=memory_html,
    data=memory_data,
    script="memory/js/memory.js",
)
