"""`labs.check`, progress, and the file of results."""

from __future__ import annotations

import json
import linecache
import statistics
from pathlib import Path
from typing import Any

import pytest

from perfnb import labs
from perfnb.errors import LabError
from perfnb.labs import ledger, results_file
from perfnb.labs.exercise import Exercise, Hint
from perfnb.labs.judging import usual_slip
from perfnb.labs.ledger import Ledger, exercise_of, exercises_of, known_labs
from perfnb.labs.workloads import interleaved


def typical(times: list[float], warmup: int) -> float:
    return statistics.median(times[warmup:])


@pytest.fixture(autouse=True)
def _a_new_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labs, "_ledger", Ledger())


def test_a_correct_answer_is_confirmed(capsys: pytest.CaptureFixture[str]) -> None:
    labs.check("1.2", typical)

    assert capsys.readouterr() == ("1.2 The typical step: right. Lab 1: 1 of 6.\n", "")


@pytest.mark.parametrize("nothing", [None, ...])
def test_no_answer_is_not_a_mistake(capsys: pytest.CaptureFixture[str], nothing: Any) -> None:
    labs.check("1.2", nothing)

    assert capsys.readouterr() == ("", "1.2 The typical step: not yet. There is no answer yet.\n")


def test_a_failing_check_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    labs.check("1.2", lambda times, warmup: 1 / 0)

    assert "Your code raised ZeroDivisionError: division by zero" in capsys.readouterr().err


def test_an_interrupt_reaches_the_reader() -> None:
    def interrupted(times: list[float], warmup: int) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        labs.check("1.2", interrupted)


@pytest.mark.parametrize(("number", "says"), [("1.99", "no exercise '1.99'"), ("99.1", "no lab '99'"), ("x", "no lab")])
def test_no_such_exercise(number: str, says: str) -> None:
    with pytest.raises(LabError, match=says):
        labs.check(number, 1)


@pytest.mark.parametrize(
    "evidence",
    [
        lambda cell: {"profile": cell},
        lambda cell: {"profile": cell.layers["total_ms"]},
        lambda cell: {"profile": [1, cell()]},
    ],
)
def test_a_check_names_the_cell_to_run_first(capsys: pytest.CaptureFixture[str], evidence: Any) -> None:
    """Also before it says that there is no answer: whoever needs the cell for that cannot have one."""
    cell = labs.from_cell("2.1 A prediction", "%%profile_step --into p")
    for answer in (1.7, ..., cell, {"ratio": cell}):
        labs.check("2.2", answer, **evidence(cell))

        assert capsys.readouterr().err == (
            '2.2 Backward divided by forward: not yet. First run the cell with "%%profile_step --into p" in the '
            'section "2.1 A prediction", then this one again. If that cell failed, its error message gives the '
            "reason.\n"
        )


def test_what_stands_for_a_cell_says_so_wherever_it_is_used() -> None:
    cell = labs.from_cell("2.1 A prediction", "%%profile_step --into p")

    assert repr(cell.layers.head(3)).startswith('First run the cell with "%%profile_step --into p"')
    for use in (iter, len, bool, float):
        with pytest.raises(LabError, match="First run the cell"):
            use(cell)
    assert not hasattr(cell, "_repr_html_")

    class Own(cell):  # type: ignore[misc, valid-type]
        pass

    assert Own.__mro__ == (Own, object)


def test_progress_counts_what_was_right() -> None:
    labs.check("1.2", None)
    assert labs.progress(1).right == 0
    assert "not yet    1.2" in repr(labs.progress(1))
    assert "not tried  1.1" in repr(labs.progress(1))

    labs.check("1.2", typical)
    assert (labs.progress(1).right, labs.progress(1).complete) == (1, False)
    assert "right      1.2  The typical step" in repr(labs.progress())
    assert repr(labs.progress()).startswith("Lab 1: 1 of 6 right\n  not tried  1.1")
    assert repr(labs.progress(3)).startswith("Lab 3: 0 of 8 right\n  not tried  3.1")


def test_a_wrong_answer_takes_nothing_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The check reports it and counts a try; the export holds the right answer, which still verifies."""
    labs.check("1.2", typical)
    labs.check("1.2", lambda times, warmup: times[0])

    assert "1.2 The typical step: not yet." in capsys.readouterr().err
    assert labs.progress(1).right == 1
    path = labs.export(tmp_path / "results.json")
    assert labs.verify(path).verdicts == {"1.2": "right"}
    (result,) = json.loads(path.read_text())["results"]
    assert "return statistics.median" in result["answer"]
    assert result["tries"] == 2


def test_a_prediction_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    labs.check("2.1", {"forward": 0.3, "backward": 0.5, "optimizer": 0.1, "rest": 0.1})

    assert capsys.readouterr().out == "2.1 A prediction: noted. Lab 2: 1 of 8.\n"
    assert "noted      2.1  A prediction" in repr(labs.progress(2))


def test_without_work_there_is_no_progress() -> None:
    assert repr(labs.progress()) == ""


def test_progress_over_all_labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lab has a kernel of its own. The files that it exported are judged again, and others are ignored."""
    labs.check("1.2", typical)
    labs.check("1.3", None)
    labs.export(tmp_path / "lab_01.json")
    monkeypatch.setattr(labs, "_ledger", Ledger())
    labs.check("1.3", None)
    labs.check("2.1", {"forward": 0.3, "backward": 0.5, "optimizer": 0.1, "rest": 0.1})
    labs.export(tmp_path / "lab_02.json")
    (tmp_path / "other.json").write_text("{}")
    claimed = json.loads((tmp_path / "lab_01.json").read_text())
    claimed["results"] = [{"number": "3.1", "right": True, "facts": {}}]
    (tmp_path / "claimed.json").write_text(json.dumps(claimed))

    every = labs.progress(exported=tmp_path)
    assert every.right == 2
    assert len(every.rows) == sum(len(exercises_of(lab)) for lab in known_labs())
    lines = repr(every).splitlines()
    assert lines[0] == f"2 of {len(every.rows)} right in {len(known_labs())} labs"
    assert lines[1] == "Lab 1: 1 of 6 right"
    assert "  right      1.2  The typical step" in lines
    assert any(line.startswith("  not yet    3.1 ") for line in lines)
    assert f"Lab 4: not started, {len(exercises_of('4'))} exercises" in lines
    assert labs.progress(1, exported=tmp_path).right == 1
    assert labs.progress(exported=tmp_path / "nowhere").right == 1
    assert labs.progress(2).right == 1


def test_every_lab_numbers_its_exercises() -> None:
    for lab in known_labs():
        assert [each.number for each in exercises_of(lab)] == [f"{lab}.{n + 1}" for n in range(len(exercises_of(lab)))]


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    labs.check("1.2", typical)
    labs.check("1.1", lambda step: 5.0)
    labs.check("1.3", None)
    return labs.export(tmp_path / "results.json")


def test_a_teacher_judges_again(exported: Path) -> None:
    verified = labs.verify(exported)

    assert verified.unchanged
    assert verified.verdicts == {"1.1": "not yet", "1.2": "right", "1.3": "not yet"}
    assert exported.stat().st_size < 10_000
    assert [path.name for path in exported.parent.iterdir()] == ["results.json"]
    assert "return statistics.median" in json.loads(exported.read_text())["results"][1]["answer"]


def test_what_is_exported_tells_no_answer(tmp_path: Path) -> None:
    """The facts of a wrong answer hold what was wanted; those of a right one hold what its reader knows."""
    wrong: dict[str, tuple[Any, dict[str, Any]]] = {
        "1.2": (lambda times, warmup: times[0], {}),
        "5.3": (lambda length, width: (1, 2), {}),
        "5.7": (lambda lengths, times, length: 1.0, {}),
    }
    wanted = set()
    for number, (answer, evidence) in wrong.items():
        wanted |= told(exercise_of(number).measure(answer, **evidence))
        labs.check(number, answer, **evidence)
    labs.check("1.4", None)

    path = labs.export(tmp_path / "results.json")

    assert len(wanted) > 20
    results = json.loads(path.read_text())["results"]
    assert [(each["right"], each["facts"]) for each in results] == [(False, {})] * 4
    assert not [each for each in wanted if each in json.dumps(results)]
    assert labs.verify(path).unchanged
    assert set(labs.verify(path).verdicts.values()) == {"not yet"}

    labs.check("1.2", typical)
    assert json.loads(labs.export(path).read_text())["results"][0]["facts"]
    assert labs.verify(path).verdicts["1.2"] == "right"


def told(facts: Any, name: str = "") -> set[str]:
    """Every number of the facts that is not what the reader said, as JSON writes it."""
    if isinstance(facts, dict):
        return {text for key, value in facts.items() for text in told(value, key)}
    if isinstance(facts, list):
        return {text for value in facts for text in told(value, name)}
    known = name in ("said", "width", "sizes", "length", "images") or isinstance(facts, (bool, str))
    return set() if known or len(text := json.dumps(facts)) < 4 else {text}


def test_a_claim_without_facts_does_not_follow(exported: Path) -> None:
    content = json.loads(exported.read_text())
    for result in content["results"]:
        result["right"] = True
    exported.write_text(json.dumps(content))

    verified = labs.verify(exported)

    assert not verified.unchanged
    assert verified.verdicts == {"1.1": "does not follow", "1.2": "right", "1.3": "does not follow"}
    assert "CHANGED" in repr(verified)


@pytest.mark.parametrize("facts", [{}, {"cases": 3}, [], None, {"cases": [{"said": "x", "wanted": 1.0}] * 3}, {"a": 1}])
def test_made_up_facts_do_not_follow(exported: Path, facts: Any) -> None:
    content = json.loads(exported.read_text())
    content["results"][1]["facts"] = facts
    exported.write_text(json.dumps(content))

    assert labs.verify(exported).verdicts["1.2"] == "does not follow"


@pytest.mark.parametrize("text", ["", "[]", "{}", '"x"', '{"format": "perfnb labs 1"}', "[" * 100_000, "\x00"])
def test_files_that_are_not_results_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)

    with pytest.raises(LabError, match=r"x\.json"):
        labs.verify(tmp_path / "x.json")


def test_an_older_file_is_refused_for_its_version(exported: Path) -> None:
    """Its facts have other names, so that none of its right answers would follow from them."""
    exported.write_text(exported.read_text().replace("perfnb labs 3", "perfnb labs 2"))

    with pytest.raises(LabError, match=r"not a results file that this version of perfnb reads \(perfnb labs 3\)"):
        labs.verify(exported)


def test_files_that_cannot_be_had(tmp_path: Path) -> None:
    labs.check("1.2", typical)
    with pytest.raises(LabError, match=r"could not be written to .*x\.json: No such file or directory\."):
        labs.export(tmp_path / "nowhere" / "x.json")
    with pytest.raises(LabError, match=r"could not be written to .*: .*null"):
        labs.export(tmp_path / "x\0.json")
    with pytest.raises(LabError, match=r"nowhere\.json cannot be read: No such file or directory\."):
        labs.verify(tmp_path / "nowhere.json")


def test_hints_write_percent_as_the_views_do() -> None:
    """With a space before the sign: 34 %."""
    for path in Path(labs.__file__).parent.glob("*.py"):
        assert "%}" not in path.read_text("utf-8"), path.name


@pytest.mark.parametrize(
    ("value", "wanted", "says"),
    [
        (0.709, 1 / 0.709, "inverse"),
        (0.705, 1.41, "half"),
        (1.41, 0.709, "inverse"),
        (0.1, 10.0, "give percent"),
        (0.1008, 9.92, "inverse"),
    ],
)
def test_the_nearest_of_two_slips_is_named(value: float, wanted: float, says: str) -> None:
    assert says in usual_slip(value, wanted, 0.03)


def test_no_input_is_timed_twice() -> None:
    seen: list[int] = []
    interleaved(lambda n: seen.append(n), lambda n: None, [(n,) for n in range(5)])

    assert seen == [0, 1, 2, 3, 4]


def test_two_functions_take_turns_in_which_runs_first() -> None:
    order: list[str] = []
    interleaved(lambda: order.append("a"), lambda: order.append("b"), [()] * 5)

    assert "".join(order) == "ab" + "baabbaab"


def test_a_class_from_a_cell_is_written_as_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "x = 1\n\nclass Answer(dict):\n    kind = 1\n\n    def method(self):\n        return 2\n\ny = 3\n"
    monkeypatch.setitem(linecache.cache, "<cell>", (len(text), None, text.splitlines(keepends=True), "<cell>"))
    names: dict[str, Any] = {"__name__": "nowhere"}
    exec(compile(text, "<cell>", "exec"), names)

    assert ledger._text(names["Answer"]) == "".join(text.splitlines(keepends=True)[2:7])
    assert ledger._text(type("Made", (dict,), {})).startswith("<class")


def test_what_a_file_calls_an_exercise_cannot_steer_the_teachers_terminal(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    each = {"number": "1.2\x1b[31m\nright", "right": True, "facts": {}}
    path.write_text(json.dumps({"format": results_file.FORMAT, "results": [each]}))

    said = repr(labs.verify(path))

    assert "\x1b" not in said
    assert len(said.splitlines()) == 2


def test_each_answer_is_a_try_and_a_right_one_stays(tmp_path: Path) -> None:
    def result() -> dict[str, Any]:
        (found,) = json.loads(labs.export(tmp_path / "results.json").read_text())["results"]
        return {name: found[name] for name in ("right", "tries")} | {"hint": bool(found["hint"])}

    labs.check("1.2", None)
    assert result() == {"right": False, "tries": 1, "hint": True}
    labs.check("1.2", lambda times, warmup: times[0])
    assert result() == {"right": False, "tries": 2, "hint": True}
    labs.check("1.2", typical)
    assert result() == {"right": True, "tries": 3, "hint": False}
    labs.check("1.2", None)
    assert result() == {"right": True, "tries": 4, "hint": False}
    labs.check("1.2", typical)
    assert result() == {"right": True, "tries": 5, "hint": False}


def test_a_file_adds_what_is_right_in_it_and_takes_nothing_away() -> None:
    book = Ledger()
    book.judge("1.2", typical, {})
    book.judge("1.3", None, {})

    rows = book.progress(1, {"1.2": False, "1.3": True, "1.4": False, "2.1": True}).rows
    found = {exercise.number: None if result is None else result.right for exercise, result in rows}
    assert found == {"1.1": None, "1.2": True, "1.3": True, "1.4": False, "1.5": None, "1.6": None}
    assert [result.number for result in book.results()] == ["1.2", "1.3"]
    assert book.progress(1).right == 1
    assert book.progress(1, {"1.3": False}).rows == book.progress(1).rows  # its own hint is kept
    assert not book.progress(1, {"1.3": True}).complete
    assert book.progress(1, {f"1.{place}": True for place in range(1, 7)}).complete
    assert len(book.progress(None, {}).rows) == sum(len(exercises_of(lab)) for lab in known_labs())


def test_labs_are_listed_in_the_order_of_their_numbers() -> None:
    book = Ledger()
    for number in ("10.1", "2.1"):
        book.judge(number, None, {})
    lines = repr(book.progress()).splitlines()

    assert lines[0] == f"0 of {len(exercises_of('10')) + len(exercises_of('2'))} right in 2 labs"
    untried = ledger.LabProgress(tuple((exercise, None) for lab in "12" for exercise in exercises_of(lab)))
    assert repr(untried).splitlines()[1:] == ["Lab 1: not started, 6 exercises", "Lab 2: not started, 8 exercises"]
    assert [line for line in lines if line.startswith("Lab")] == ["Lab 2: 0 of 8 right", "Lab 10: 0 of 8 right"]
    assert list(known_labs()) == [str(lab) for lab in range(1, 13)]


def test_an_answer_and_a_hint_are_kept_up_to_a_length() -> None:
    assert ledger._text("x" * 3998) == repr("x" * 3998)
    assert ledger._text("x" * 3999) == "'" + "x" * 3996 + "..."

    def fails(times: list[float], warmup: int) -> float:
        raise Hint("x" * length)

    length = 1200
    assert ledger.judged(exercise_of("1.2"), fails, {})[1] == "x" * 1200
    length = 1201
    assert ledger.judged(exercise_of("1.2"), fails, {})[1] == "x" * 1197 + "..."


def test_answers_with_something_in_them_are_judged() -> None:
    forward = {"forward": 0.3, "backward": ..., "optimizer": None, "rest": 0.1}

    assert ledger.judged(exercise_of("2.1"), dict.fromkeys(forward), {})[1] == "There is no answer yet."
    assert ledger.judged(exercise_of("2.1"), forward, {})[1] == "backward has no value yet."
    assert "must be a dictionary" not in ledger.judged(exercise_of("2.1"), {}, {})[1]
    assert ledger.judged(exercise_of("2.2"), 1.7, {"profile": None})[1] == (
        "There is no profile yet: run the cell that makes it, then this one again."
    )
    assert ledger.judged(exercise_of("2.2"), 1.7, {"other": 3})[1] == (
        "Call the check as in its cell: labs.check('2.2', your answer, profile=...)."
    )
    broken = [(lambda answer: 1 / 0, {}), (lambda answer, profile: 1 / 0, {"profile": 3})]
    hints = [ledger.judged(Exercise("1.2", "", measure, print), 1.7, given)[1] for measure, given in broken]
    assert [hint.partition("wrong type in your ")[2] for hint in hints] == ["answer.", "answer and in profile."]
    assert all("The check cannot read its arguments (ZeroDivisionError: division by zero)." in hint for hint in hints)


def test_a_file_may_be_as_large_as_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labs.check("1.2", typical)
    path = labs.export(tmp_path / "results.json")
    size = path.stat().st_size

    monkeypatch.setattr(results_file, "LARGEST", size)
    assert labs.verify(path).right == 1
    monkeypatch.setattr(results_file, "LARGEST", size - 1)
    with pytest.raises(LabError, match="too large for a results file"):
        labs.verify(path)


def test_a_verification_counts_what_is_right() -> None:
    verdicts = {"1.1": "right", "1.2": "not yet", "10.1": "right"}

    assert repr(results_file.Verification(True, verdicts)).splitlines() == [
        "2 right; the file is unchanged since it was written",
        "  1.1   right",
        "  1.2   not yet",
        "  10.1  right",
    ]


def test_of_two_files_either_may_show_that_an_answer_is_right(tmp_path: Path) -> None:
    labs.check("1.2", typical)
    labs.export(tmp_path / "b.json")
    wrong = json.loads((tmp_path / "b.json").read_text())
    wrong["results"][0] |= {"right": False, "facts": {}}
    for name in ("a.json", "c.json"):
        (tmp_path / name).write_text(json.dumps(wrong))

    assert results_file.exported_results(tmp_path) == {"1.2": True}
    assert results_file.exported_results(tmp_path / "nowhere") == {}
