"""The labs' notebooks: made from their sources, fit for nbgrader, and kind to those who have not solved them yet.

The solutions run with the other notebooks, under nbval; each ends with the assertion that every check passed, and
`notebooks/conftest.py` sees that what is graded writes nothing to the error stream.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from notebooks.conftest import demand_silence, lacks_only_times
from notebooks.labs import build
from perfnb.errors import LabError
from perfnb.labs.ledger import exercises_of
from tests.magics.kernel import Kernel, started

BUILT = build.built()
STUDENTS = [path for path in BUILT if path.parent.name == "labs"]
NBGRADER = {"cell_type", "grade", "grade_id", "locked", "schema_version", "solution", "task"}
#: What a measurement may cost. How exact it is matters where exercises are solved, and the solutions run unmodified.
LONG, MANY = re.compile(r"(budget_s=|--budget )\d+(?:\.\d+)?"), re.compile(r"(--steps )\d+")
#: So too where no budget is named.
QUICK = "__import__('tests.docs.quick', fromlist=['shorten']).shorten()"
SOLUTIONS = [path for path in BUILT if path.parent.name == "solutions"]


def lab_of(path: Path) -> str:
    return str(int(path.name[:2]))


def code(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(BUILT[path])["cells"] if cell["cell_type"] == "code"]


def marked(path: Path, mark: str) -> list[dict[str, Any]]:
    return [cell for cell in code(path) if is_marked(cell, mark)]


def is_marked(cell: dict[str, Any], mark: str) -> bool:
    return bool(cell["metadata"].get("nbgrader", {}).get(mark))


def test_there_are_notebooks_of_both_kinds() -> None:
    assert len(STUDENTS) == len(SOLUTIONS) >= 1
    there = {path for folder in (build.HERE, build.HERE / "solutions") for path in folder.glob("*.ipynb")}
    assert there == set(BUILT)


@pytest.mark.parametrize("path", BUILT, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_notebook_is_up_to_date(path: Path) -> None:
    import nbformat

    assert path.read_text("utf-8") == BUILT[path], "run: python -m notebooks.labs.build"
    nbformat.validate(nbformat.reads(BUILT[path], as_version=4))


@pytest.mark.parametrize("path", STUDENTS, ids=lambda path: path.stem)
def test_students_see_no_solution(path: Path) -> None:
    assert "SOLUTION" not in BUILT[path]
    assert "HIDDEN" not in BUILT[path]
    assert all(build.STUB in "".join(cell["source"]) for cell in marked(path, "solution"))


OPENING = re.compile(
    r"# Lab (?P<lab>\d+) · (?P<title>[^\n]+)\n\n\*\*Runs on\*\* (?P<on>[^;.]+)[;.].*?"
    r"\*\*Takes\*\* (?P<least>\d+) to (?P<most>\d+) minutes.*?\n\n"
    r"\*\*Afterwards you can\*\*\n\n(?P<able>(?:- [^\n]+\n)+)",
    re.DOTALL,
)


@pytest.mark.parametrize("path", STUDENTS, ids=lambda path: path.stem)
def test_a_lab_opens_with_what_it_runs_on_takes_and_teaches(path: Path) -> None:
    first = "".join(json.loads(BUILT[path])["cells"][0]["source"])
    opening = OPENING.match(re.sub(r"(?<=\S)\n(?: {2})?(?=[^\s-])", " ", first))  # paragraphs and items in one line

    assert opening, first
    assert opening["lab"] == lab_of(path)
    assert "two CPU cores, 2 GB of memory, no GPU" in opening["on"]
    assert 30 <= int(opening["least"]) < int(opening["most"]) <= 130
    assert opening["able"].count("\n") >= 3
    page = (build.HERE.parents[1] / "docs" / "labs.md").read_text("utf-8")
    lab = f"{opening['lab']} · {re.escape(opening['title'])}"
    time = f"{opening['least']} to {opening['most']} minutes"
    assert re.search(rf"^\| {lab}(?: \([^|]+\))? \| {time} \| [^|]+ \|$", page, re.MULTILINE)


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
def test_every_exercise_has_an_answer_and_a_check(path: Path) -> None:
    numbers = [exercise.number for exercise in exercises_of(lab_of(path))]
    checked = [re.search(r'labs\.check\("([\d.]+)"', "".join(cell["source"])) for cell in marked(path, "points")]

    assert [found and found[1] for found in checked] == numbers
    assert len(marked(path, "solution")) == len(numbers)


@pytest.mark.parametrize("path", BUILT, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_exercise_costs_another_one_its_points(path: Path) -> None:
    """The requirement for the whole lab has a cell of its own, the last one, which gives no points."""
    *_, last = code(path)
    solved, demand = path in SOLUTIONS, f"assert labs.progress({lab_of(path)}).complete"

    assert not [cell for cell in marked(path, "points") if "assert" in "".join(cell["source"])]
    assert last["metadata"]["nbgrader"]["points"] == 0
    assert (demand in "".join(last["source"])) == solved
    assert "".join(last["source"]).endswith(f"labs.progress({lab_of(path)})")


@pytest.mark.parametrize("path", BUILT, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_nbgrader_finds_its_metadata(path: Path) -> None:
    """As nbgrader's schema, version 3, has it; each place of points also has a check that can be failed."""
    every = [cell["metadata"]["nbgrader"] for cell in code(path) if "nbgrader" in cell["metadata"]]
    names = [facts["grade_id"] for facts in every]
    last = every[-1]

    assert len(set(names)) == len(names)
    for facts in every:
        grade = facts["grade"]
        assert set(facts) - {"points"} == NBGRADER
        assert (facts["schema_version"], facts["cell_type"], facts["task"]) == (3, "code", False)
        assert (facts["locked"], facts["solution"], "points" in facts) == (grade, not grade, grade)
        assert not grade or (facts["points"] > 0) == (facts is not last)
        assert re.fullmatch(r"[\w-]+", facts["grade_id"])


def test_the_page_for_teachers_gives_nbgrader_the_same_stub() -> None:
    page = (build.HERE.parents[1] / "docs" / "labs.md").read_text("utf-8")

    assert f'c.ClearSolutions.code_stub = {{"python": "{build.STUB}"}}' in page


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
def test_nbgrader_makes_the_same_notebook_for_students(path: Path) -> None:
    reason = "nbgrader is not installed; perfnb does not need it"
    steps = pytest.importorskip("nbgrader.preprocessors", reason=reason)
    import nbformat

    made = nbformat.reads(BUILT[path], as_version=4)
    clear = steps.ClearSolutions(code_stub={"python": build.STUB})
    for step in (clear, steps.ClearHiddenTests(), steps.CheckCellMetadata()):
        made, _ = step.preprocess(made, {})

    ours = nbformat.reads(BUILT[build.HERE / path.name], as_version=4)
    code_of = [[cell.source for cell in each.cells if cell.cell_type == "code"] for each in (made, ours)]
    assert code_of[0] == code_of[1]
    assert [cell.id for cell in made.cells] == [cell.id for cell in ours.cells]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """One for all, with what each of them imports; that they run in a fresh one is seen of the solutions."""
    with started(tmp_path_factory.mktemp("labs")) as running:
        running.ok(QUICK)
        yield running


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", STUDENTS, ids=lambda path: path.stem)
def test_an_unsolved_notebook_runs_to_its_end(path: Path, kernel: Kernel) -> None:
    kernel.ok("%reset -f")
    replies = []
    for cell in code(path):
        source = LONG.sub(r"\g<1>0.3", MANY.sub(r"\g<1>1", "".join(cell["source"])))
        replies.append(reply := kernel.run(source))
        assert reply.status == "ok", f"{source}\n{reply.traceback or reply.message}"

    checks = [reply for cell, reply in zip(code(path), replies, strict=True) if is_marked(cell, "points")]
    for reply in checks:
        (said,) = [output for output in reply.outputs if "name" in output]
        assert said["name"] == "stderr"  # by which nbgrader gives no points
        assert re.match(r"\d+\.\d+ [^:]+: not yet\. \S.*[.?]\n?$", said["text"], re.DOTALL), said["text"]
        assert "Traceback" not in said["text"]
    assert len(checks) == len(exercises_of(lab_of(path)))


@pytest.mark.slow
@pytest.mark.parametrize("path", STUDENTS, ids=lambda path: path.stem)
def test_a_check_says_which_cell_to_run_first(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    """All cells but the imports, the answers and the checks failed: no `NameError`, and each cell named is there."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    every = code(path)
    names: dict[str, Any] = {}
    (imports,) = [cell for cell in every if "from_cell(" in "".join(cell["source"])]
    exec(build.MAGIC_LINE.sub("", "".join(imports["source"])), names)
    other = "".join(line for cell in every if cell is not imports for line in cell["source"])
    headings = "".join("".join(cell["source"]) for cell in json.loads(BUILT[path])["cells"])
    capsys.readouterr()

    for cell in every:
        if is_marked(cell, "solution"):
            with suppress(NameError, LabError):  # it needs what the cells above make, as its reader sees
                exec("".join(cell["source"]), names)
        elif is_marked(cell, "points"):
            exec("".join(cell["source"]), names)

    if "folder" in names:
        names["folder"].cleanup()
    said = capsys.readouterr().err
    assert len(re.findall(r"^\d+\.\d+ .*: not yet\. ", said, re.MULTILINE)) == len(exercises_of(lab_of(path)))
    first = re.findall(r'First run the cell with "(.*?)" in the section "(.*?)", then', said)
    assert first or lab_of(path) == "1"
    for line, section in first:
        assert line in other
        assert f"## {section}\n" in headings


@pytest.mark.parametrize("path", STUDENTS, ids=lambda path: path.stem)
def test_what_checks_need_has_a_placeholder(path: Path) -> None:
    every = code(path)
    before: set[str] = {"labs"}
    for cell in every:
        source = "".join(cell["source"])
        if "from_cell(" in source or is_marked(cell, "solution"):
            before |= {name for name, _ in build._bound(source)}
        if is_marked(cell, "points"):
            assert set(build._read(source)) <= before, source


@pytest.mark.parametrize("path", STUDENTS, ids=lambda path: path.stem)
def test_what_cells_need_of_answers_has_a_placeholder(path: Path) -> None:
    """So that a reader who skips an exercise meets no `NameError` further down."""
    answered, bound = set[str](), {"labs"}
    for cell in code(path):
        source = "".join(cell["source"])
        if is_marked(cell, "solution"):
            answered |= {name for name, _ in build._bound(source)}
        elif not cell["metadata"].get("nbgrader"):
            assert answered & set(build._read(source)) <= bound, source
            bound |= {name for name, _ in build._bound(source)}


def test_a_cell_below_a_skipped_exercise_says_what_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    """4.4 is answered and 4.3 is not: the cell that compares the two still runs."""
    (path,) = [path for path in STUDENTS if path.name.startswith("04")]
    names: dict[str, Any] = {}
    (imports,) = [cell for cell in code(path) if "from_cell(" in "".join(cell["source"])]
    exec(build.MAGIC_LINE.sub("", "".join(imports["source"])), names)
    (compared,) = [cell for cell in code(path) if "counted in 4.3" in "".join(cell["source"])]
    model = torch.nn.Linear(64, 10)
    given = {"model": model, "x": torch.randn(16, 64), "y": torch.zeros(16, dtype=torch.long), "largest": 1200}
    exec("".join(compared["source"]), names | given | {"loss_fn": torch.nn.CrossEntropyLoss(), "WIDTHS": (64, 10),
                                                      "peaks": {512: 2**23, 1024: 2**24}})  # fmt: skip

    assert 'First run the cell with "def saved_bytes" in the section "4.3 What backward' in capsys.readouterr().out


def test_no_report_gives_the_verdict_away() -> None:
    """In lab 8, perfnb's own verdict comes after the reader's."""
    (path,) = [path for path in STUDENTS if path.name.startswith("08")]
    every = code(path)
    (asked,) = [place for place, cell in enumerate(every) if '"8.8"' in "".join(cell["source"])]
    shown = [ast.parse("".join(cell["source"])).body[-1] for cell in every]
    reports = [place for place, last in enumerate(shown) if isinstance(getattr(last, "value", None), ast.Name)]

    assert reports
    assert min(reports) > asked
    assert not [cell for cell in every[:asked] if re.search("findings|print\\(a|verdict\\(", "".join(cell["source"]))]


class Ran:
    """A cell as nbval leaves it."""

    def __init__(self, text: str, *, grade: bool = True, name: str = "stderr") -> None:
        self.cell = {"metadata": {"nbgrader": {"grade": grade}}}
        self.test_outputs = [{"output_type": "display_data"}, {"output_type": "stream", "name": name, "text": text}]

    def raise_cell_error(self, message: str, wrote: str) -> None:
        raise AssertionError(f"{message}: {wrote}")


def test_a_graded_cell_may_not_write_to_the_error_stream() -> None:
    """Of the solutions nbval sees to it, in the run that there is anyway."""
    with pytest.raises(AssertionError, match="no points for it: UserWarning"):
        demand_silence(Ran("UserWarning: careful"))
    demand_silence(Ran("2.3: right", name="stdout"))
    demand_silence(Ran("UserWarning: careful", grade=False))
    demand_silence(SimpleNamespace(name="a test that is no cell"))


@pytest.mark.parametrize(
    ("text", "silent"), [("2.8 Did it help?: not yet. No.", True), ("2.6 The: not yet. No.", False)]
)
def test_times_are_not_judged_here(monkeypatch: pytest.MonkeyPatch, text: str, silent: bool) -> None:
    """A busy machine refuses a right answer where times are judged; `PERFNB_JUDGE_TIMES` judges them all the same."""
    monkeypatch.delenv("PERFNB_JUDGE_TIMES", raising=False)
    if silent:
        demand_silence(Ran(text))
        monkeypatch.setenv("PERFNB_JUDGE_TIMES", "1")
    with pytest.raises(AssertionError, match="no points for it"):
        demand_silence(Ran(text))


@pytest.mark.parametrize(
    ("left", "excused"),
    [
        (["not yet    2.8  Did it help?"], True),
        (["not yet    2.7  The same, faster", "not yet    2.8  Did it help?"], True),
        (["not yet    2.6  The suspect", "not yet    2.8  Did it help?"], False),
        (["not tried  2.8  Did it help?"], False),
        ([], False),
    ],
)
def test_a_lab_may_lack_what_judges_times(monkeypatch: pytest.MonkeyPatch, left: list[str], excused: bool) -> None:
    monkeypatch.delenv("PERFNB_JUDGE_TIMES", raising=False)
    ran = Ran("")
    text = "\n".join(["Lab 2: some of 8 right", "  right      2.5  A frozen body", *(f"  {line}" for line in left)])
    ran.test_outputs.append({"output_type": "error", "ename": "AssertionError", "evalue": text})

    assert lacks_only_times(ran) == excused
    assert not lacks_only_times(SimpleNamespace(cell=None))
    monkeypatch.setenv("PERFNB_JUDGE_TIMES", "1")
    assert not lacks_only_times(ran)


def test_the_index_leads_to_every_notebook() -> None:
    folder = build.HERE.parent
    cells = json.loads((folder / "index.ipynb").read_text("utf-8"))["cells"]
    text = "".join(line for cell in cells for line in cell["source"])
    linked = {(folder / target).resolve() for target in re.findall(r"\]\(([^)]+)\)", text)}
    there = {*folder.glob("*.ipynb"), *STUDENTS} - {folder / "index.ipynb"}

    assert linked == {path.resolve() for path in there}


@pytest.mark.parametrize("path", STUDENTS, ids=lambda path: path.stem)
def test_links_between_labs_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([\w/.]+\.ipynb)\)", BUILT[path]):
        assert (path.parent / target).exists(), target


SOURCE = """# %% [markdown]
# # Title
#
# text
# %%
# %load_ext perfnb
# %% answer 1.1
def f(x):
    ### BEGIN SOLUTION
    y = x
    return y
    ### END SOLUTION
# %% check 1.1 points=3
labs.check("1.1", f)
### BEGIN HIDDEN TESTS
assert f(3)
### END HIDDEN TESTS
# %% progress
### BEGIN HIDDEN TESTS
assert True
### END HIDDEN TESTS
labs.progress(1)
"""


def test_a_source_becomes_two_notebooks() -> None:
    notebooks = [json.loads(build.notebook(SOURCE, "lab-01", solved=solved)) for solved in (False, True)]
    student, solution = (notebook["cells"] for notebook in notebooks)

    assert "".join(student[0]["source"]) == "# Title\n\ntext"
    assert "".join(student[1]["source"]) == "%load_ext perfnb"
    assert "".join(student[2]["source"]) == "def f(x):\n    pass  # YOUR CODE HERE"
    assert "".join(student[3]["source"]) == 'labs.check("1.1", f)'
    assert "".join(student[4]["source"]) == "labs.progress(1)"
    assert "return y" in "".join(solution[2]["source"])
    assert "assert f(3)" in "".join(solution[3]["source"])
    assert "assert True" in "".join(solution[4]["source"])
    assert [cell["id"] for cell in student] == [cell["id"] for cell in solution]
    assert [cell["metadata"]["nbgrader"]["points"] for cell in student[3:]] == [3, 0]


def test_a_cell_misspelt_is_refused() -> None:
    with pytest.raises(ValueError, match="not a cell: # %% anwser"):
        build.notebook("# %% anwser 1.1\n", "lab-01", solved=True)
