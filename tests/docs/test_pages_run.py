"""Every block of code in the documentation and the README runs, page by page, in a real kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import coming_from
from tests.docs.pages import PAGES, blocks_of
from tests.docs.quick import with_short_budgets, write_files
from tests.magics.kernel import Kernel, started

QUICK = "__import__('tests.docs.quick', fromlist=['shorten']).shorten()"

#: How many blocks no test can run, by reason. Nothing tests these, so keep the numbers low.
NOT_RUN = {
    "a command for a terminal": 9,
    "a configuration file of GitHub's": 1,
    "a configuration file of nbgrader's": 1,
    "needs DuckDB": 1,
    "needs Ray": 1,
    "needs a GPU": 1,
    "needs an experiment tracker": 1,
    "needs a cluster": 2,
    "needs a launcher": 1,
    "needs a running loop": 1,
    "needs a recording of Nsight Systems": 1,
    "needs a snapshot of CUDA's allocator": 1,
    "needs a trace with ranges of your own": 1,
    "needs nsys": 1,
    "needs the profiles of a job": 2,
}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with started(tmp_path_factory.mktemp("docs")) as running:
        running.ok(QUICK)
        running.inside("tidy()")
        yield running


#: Pages whose code takes long: what they use has quick tests of its own.
LONG = (
    "architectures", "backends", "compile", "compiled", "inference", "levers", "loops", "memory", "rank_scaling",
    "ranks", "tokens", "trainers",
)  # fmt: skip
WITH_CODE = [
    pytest.param(page, marks=[pytest.mark.deep] if Path(page).stem in LONG else [])
    for page, path in PAGES.items()
    if any(not block.not_run for block in blocks_of(path))
]


@pytest.mark.kernel
@pytest.mark.parametrize("page", WITH_CODE)
def test_the_code_of_a_page_runs(page: str, kernel: Kernel, tmp_path: Path) -> None:
    kernel.inside("tidy()")
    kernel.ok(f"%cd -q {tmp_path}")

    for block in blocks_of(PAGES[page]):
        if not block.not_run:
            reply = kernel.run(with_short_budgets(block.code))
            assert reply.status == "ok", f"{page}:{block.line}\n{reply.traceback or reply.message}"
            if block.prints:
                assert (reply.text("stdout") + reply.text("stderr")).strip() == block.prints, f"{page}:{block.line}"


@pytest.mark.deep
def test_what_one_types_here_who_comes_from_elsewhere_runs(kernel: Kernel, tmp_path: Path) -> None:
    write_files(tmp_path)
    kernel.inside("tidy()")
    kernel.ok(f"%cd -q {tmp_path}")
    kernel.ok(coming_from.SETUP)

    codes = coming_from.runnable()
    assert len(codes) > 15
    replies = {code: kernel.run(code) for code in codes}
    assert {code: reply.message for code, reply in replies.items() if reply.status != "ok"} == {}


def test_what_is_not_run_is_known() -> None:
    reasons = Counter(block.not_run for path in PAGES.values() for block in blocks_of(path) if block.not_run)

    assert reasons == NOT_RUN


PAGE = """
# A page

```python
c = 1 + 2
```

<!-- not run: needs a GPU -->
```python
d = gpu()
```

```text
no output of the block above, which is not run
```

```python
print(c)
```
```text
3
```

```{toctree}
other
```
"""


def test_a_page_is_taken_apart(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(PAGE)

    assert [tuple(block) for block in blocks_of(path)] == [
        (4, "c = 1 + 2", "", ""),
        (9, "d = gpu()", "needs a GPU", ""),
        (17, "print(c)", "", "3"),
    ]


@pytest.mark.parametrize(
    "text", ["```\nx = 1\n```", "```sh\nls\n```", "<!-- not run: needs a GPU -->\n\nNo code.\n\n```python\nx = 1\n```"]
)
def test_code_that_would_run_nowhere_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "page.md").write_text(text)

    with pytest.raises(ValueError, match=r"page\.md:"):
        blocks_of(tmp_path / "page.md")
