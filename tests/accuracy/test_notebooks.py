"""What the notebooks tell their readers to expect: they run as a reader runs them, and their figures are looked at."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.accuracy.judging import Figures

ROOT = Path(__file__).parents[2]
#: A notebook, and of some cells (by what they begin with or hold) what is looked at after them: words, an expression,
#: and the least or the most that it may be. What is true counts as 1.
LOOKED_AT: dict[str, list[tuple[str, str, str, float | None, float | None]]] = {
    "quickstart": [
        (
            "before.findings[[",
            "waits for data (1 = yes)",
            "'input pipeline' in set(before.findings.bottleneck)",
            1,
            None,
        ),
        ("test = perfnb.ab_test", "cleaned once is faster (1 = yes)", "test.verdict == 'faster'", 1, None),
        (
            "before.compare(after)",
            "wait for data, after / before",
            "after.phases.ms['data'] / before.phases.ms['data']",
            None,
            0.5,
        ),
    ],
    "find_the_bottleneck": [
        (
            'p.findings[["bottleneck"',
            "waiting for data comes first (1 = yes)",
            "p.findings.bottleneck.iloc[0] == 'input pipeline'",
            1,
            None,
        ),
        ('name="digits"', "the parsed data set is not rejected (1 = yes)", "report.decision != 'reject'", 1, None),
        (
            'finding.bottleneck == "optimizer"',
            "the loop optimizer is found (1 = yes)",
            "'optimizer' in set(p.findings.bottleneck)",
            1,
            None,
        ),
        (
            'finding.bottleneck == "attention unfused"',
            "unfused attention is found (1 = yes)",
            "'attention unfused' in set(p.findings.bottleneck)",
            1,
            None,
        ),
        (
            'change="fused attention", budget',
            "causal attention is not rejected (1 = yes)",
            "report.decision != 'reject'",
            1,
            None,
        ),
    ],
    "architectures": [
        ("below = [", "share of attention at 64 positions", "attention['64']", None, 0.73),
        ("below = [", "attention at 1,024 positions / at 64", "attention['1024'] / attention['64']", 1, None),
    ],
    "labs/solutions/12_capstone": [
        (
            "journal.add(p,",
            "three faults have findings (1 = yes)",
            "{'host code', 'float64', 'repeated forward'} <= set(p.findings.bottleneck)",
            1,
            None,
        ),
        ("whole = perfnb.ab_test", "time with all cures / without", "whole.ratio", None, 0.3),
    ],
}


@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_notebook_shows_what_it_promises(name: str, figure: Figures) -> None:
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4)
    looks = {}
    for place, (fragment, _, expression, _, _) in enumerate(LOOKED_AT[name]):
        holds = [cell for cell in book.cells if cell.cell_type == "code" and fragment in cell.source]
        assert holds, f"no cell of {name} holds {fragment!r}"
        looks[place] = nbformat.v4.new_code_cell(f"print(float({expression}))")
        book.cells.insert(book.cells.index(holds[-1]) + 1, looks[place])
    client = NotebookClient(book, timeout=1200, resources={"metadata": {"path": str(ROOT / "notebooks")}})
    client.execute()

    for place, (_, words, _, least, most) in enumerate(LOOKED_AT[name]):
        value = ast.literal_eval(looks[place].outputs[0].text.strip())
        figure(f"{name}: {words}", value, **({"at_least": least} if most is None else {"at_most": most}))
