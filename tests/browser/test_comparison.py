"""Two traces side by side as a page: no column is cut off where there is little room."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfnb
from tests.browser.conftest import OpenPage
from tests.pages import static_page
from tests.written_traces import Written

KERNEL = "void gemm_with_a_name_of_many_words_{}::of<float>(float*)"

pytestmark = pytest.mark.browser


def trace(path: Path, us: float) -> perfnb.Profile:
    """Return layers with long names, an op in each, and kernels with long names."""
    trace = Written(deviceProperties=[{"id": 0, "name": "Small GPU"}]).step(0, 0, 900)
    shapes = {"Input Dims": [[4, 12, 197, 64], [4, 12, 197, 64], [4, 12, 197, 64]]}
    trace.module("VisionTransformerModel_0", 1, 890).module("VisionTransformerEncoder_0", 2, 880)
    for place in range(6):
        begin = 10.0 + 100 * place
        trace.module(f"ScaledDotProductSelfAttention_{place}", begin, begin + 90)
        trace.event("aten::scaled_dot_product_attention", begin + 1, begin + 80, **shapes)  # type: ignore[arg-type]
        trace.kernel(KERNEL.format(us), begin + 5, 1000 + begin, 1000 + begin + us)
        trace.kernel(KERNEL.format("second"), begin + 15, 1050 + begin, 1050 + begin + us)
    profile = perfnb.load(trace.write(path))
    assert isinstance(profile, perfnb.Profile)
    return profile


@pytest.mark.smoke
def test_a_page_of_700_pixels_shows_every_column(open_page: OpenPage, tmp_path: Path) -> None:
    compared = trace(tmp_path / "the_first_of_two_traces.json", 10).compare(
        trace(tmp_path / "the_second_of_two_traces.json", 30)
    )

    html = static_page("Compared", compared._repr_mimebundle_()["text/html"])
    page = open_page(html, viewport={"width": 700, "height": 900})

    room, tables = page.evaluate(
        "(() => { const all = document.querySelector('.perfnb-static'); const tables = "
        "[...all.querySelectorAll('table')].map((one) => one.offsetWidth);"
        "return [[all.scrollWidth, all.clientWidth], tables]; })()"
    )
    assert room[0] <= room[1]
    assert max(tables) > 600  # there is something that needs the room
    assert page.locator("td[align=right]").first.evaluate("(one) => getComputedStyle(one).whiteSpace") == "nowrap"
