"""The report's tab of the GPU."""

from perfnb.draw.tab import Tab
from perfnb.gpu.data import gpu_data
from perfnb.gpu.view import gpu_html, gpu_text

TAB = Tab(
    key="gpu",
    title="GPU",
    shows=lambda report: report.summary.gpu,
    text=gpu_text,
    html=gpu_html,
    data=gpu_data,
    script="gpu/js/gpu.js",
    style="gpu/js/gpu.css",
)
