"""*Try it* in JupyterLab: pressed on a real step, it answers in place; without the kernel, a line gives
instructions.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import Page, expect

from perfnb.profile.display import standalone_page
from tests.browser.conftest import JupyterLab, OpenPage, end_kernels
from tests.findings import findings_samples as samples

pytestmark = pytest.mark.browser

START_MS = 120_000
REPOSITORY = Path(__file__).parents[2]
SETUP = f"""\
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
%load_ext perfnb
import torch
from torch import nn
torch.manual_seed(0)
class Many(nn.Module):  # its update takes most of the step on any machine
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(8)) for _ in range(300))
    def forward(self, x):
        return torch.cat(list(self.weights)).sum() * x.mean()
model = Many()
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
loader = [torch.randn(4, 8) for _ in range(4)]
def state():
    return [value.detach().clone() for value in model.parameters()]
"""
STEP = """\
%%profile_step --steps 20 --warmup 3 --no-memory --no-flops --into p for x in loader
optimizer.zero_grad()
model(x).sum().backward()
optimizer.step()
"""
KEPT = "before = state()\nprint(list(p.findings['remedy']))"
SAME = """\
runs = globals().get("runs", 0) + 1
print(f"run {runs} unchanged:", all(map(torch.equal, before, state())))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_press_answers_in_place(page: Page, jupyterlab: JupyterLab) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat")
    path = jupyterlab.root / "try.ipynb"
    cells = [nbformat.v4.new_code_cell(source) for source in (SETUP, STEP, KEPT, SAME)]
    kernel = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    page.goto(jupyterlab.page_of(path.name))
    expect(page.get_by_text("| Idle")).to_be_visible(timeout=START_MS)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).first.click()
    live = page.locator("article.perfnb")
    expect(live).to_be_visible(timeout=START_MS)
    live.get_by_role("tab", name=re.compile("^Findings")).click()
    finding = live.locator(".pf-finding").filter(has=page.get_by_role("heading", name="optimizer"))
    expect(live).to_contain_text("Update all parameters in one call")  # on the card, unless the verdict has it already

    finding.get_by_role("button", name="Try it").click()

    answer = finding.get_by_role("region", name="Tried fused_optimizer")
    expect(answer).to_be_visible(timeout=START_MS)
    expect(answer.get_by_role("status")).to_have_text(re.compile(r"^With fused_optimizer: .+\.$"))
    expect(answer).to_contain_text(re.compile("Could save.*up to"))
    expect(answer).to_contain_text("Results")
    expect(finding).not_to_contain_text("Try Update all")
    expect(answer.get_by_role("button", name="Try again")).to_be_enabled()

    page.locator(".jp-CodeCell").last.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    expect(page.get_by_text("run 2 unchanged: True")).to_be_visible(timeout=START_MS)

    page.keyboard.press("Control+s")
    expect(page.locator(".jp-mod-current.jp-mod-dirty")).to_have_count(0)
    end_kernels(jupyterlab.url)
    page.reload()
    twin = page.locator(".perfnb-static")
    expect(twin).to_contain_text("%%try_levers --levers fused_optimizer", timeout=START_MS)
    expect(page.get_by_role("button", name="Try it")).to_have_count(0)


def test_an_exported_report_shows_the_line_to_run(open_page: OpenPage) -> None:
    page = open_page(standalone_page(samples.with_findings(samples.with_remedy({"magic": "cell"}))))
    page.get_by_role("tab", name=re.compile("^Findings")).click()

    expect(page.locator(".pf-finding")).to_contain_text("To try it, run this in place of %%profile_step")
    expect(page.locator(".pf-finding code")).to_have_text("%%try_levers --levers compile")
    expect(page.get_by_role("button", name="Try it")).to_have_count(0)
