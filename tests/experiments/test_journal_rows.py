"""The tables of all profiles of a journal as one, and queries over them."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.dataset as ds
import pytest

import perfnb
from perfnb.errors import PerfnbError
from tests.ranks.rank_traces import rank_trace, written

TABLES = ("layers", "phases", "ops", "kernels", "gpu_time")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a profile, a job, and a profile that was added."""
    folder = tmp_path_factory.mktemp("made")
    paths = written(folder, [rank_trace(0), rank_trace(50)])
    one = perfnb.load(paths[0])
    one.save(folder / "saved" / "one")  # type: ignore[union-attr]
    perfnb.load(paths).save(folder / "saved" / "job")  # type: ignore[union-attr]
    perfnb.journal(folder / "saved").add(one)  # type: ignore[call-overload]
    return folder / "saved"


@pytest.fixture
def journal(made: Path, tmp_path: Path) -> perfnb.results.Journal:
    return perfnb.journal(shutil.copytree(made, tmp_path / "saved"))


@pytest.mark.parametrize("table", TABLES)
def test_a_table_has_the_rows_of_every_profile_and_rank(journal: perfnb.results.Journal, table: str) -> None:
    rows = getattr(journal, table)
    (added,) = journal.history.index

    for entry, rank, place in (("one", 0, "one"), ("job", 1, "job/rank_1"), (added, 0, f"{added}/profile")):
        own = getattr(perfnb.load(journal.path / place), table)
        own = own.reset_index() if table != "gpu_time" else own
        found = rows[(rows["entry"] == entry) & (rows["rank"] == rank)]
        assert len(found) == len(own)
        for name in own.columns.difference(["rank"]):
            pd.testing.assert_series_equal(found[name], own[name], check_dtype=False, check_index=False)


def test_a_dataset_reads_what_is_asked_for(journal: perfnb.results.Journal) -> None:
    rows = journal.dataset("kernels")
    found = rows.to_table(columns=["entry", "total_ms"], filter=(ds.field("entry") == "job") & (ds.field("rank") == 1))

    assert found.column_names == ["entry", "total_ms"]
    assert set(found["entry"].to_pylist()) == {"job"}
    assert rows.count_rows() == len(journal.kernels) > found.num_rows > 0
    with pytest.raises(ValueError, match=r"table must be one of layers, phases, .*, not 'events'"):
        journal.dataset("events")


def test_a_damaged_table_is_left_out_and_named(journal: perfnb.results.Journal) -> None:
    file = journal.path / "one" / "table_ops.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    (journal.path / "job" / "rank_0" / "table_ops.parquet").unlink()

    assert "one" not in set(journal.ops["entry"])
    assert set(journal.ops.loc[journal.ops["entry"] == "job", "rank"]) == {1}
    assert "table_ops.parquet is damaged" in journal.damaged["one"]
    assert "one" in set(journal.kernels["entry"])
    empty = perfnb.journal(journal.path / "nowhere")
    assert (len(empty.layers), len(empty.findings), len(empty.table)) == (0, 0, 0)


def test_findings_are_those_that_were_saved(journal: perfnb.results.Journal) -> None:
    findings = journal.findings
    one = perfnb.load(journal.path / "one").findings  # type: ignore[union-attr]

    assert len(one)
    assert findings.loc[["one"], "bottleneck"].tolist() == one["bottleneck"].tolist()
    assert findings.loc[["one"], "bound_ms"].tolist() == pytest.approx(one["bound_ms"].tolist())


def test_sql_without_duckdb_is_refused_in_one_sentence(
    journal: perfnb.results.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(PerfnbError, match=r"^sql\(\) requires DuckDB, which is not installed\. Run pip install"):
        journal.sql("select 1")


def test_sql_with_duckdb_queries_all_tables(journal: perfnb.results.Journal) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    found = journal.sql(
        "select entries.kind, kernels.rank, sum(total_ms) as ms from kernels join entries using (entry) "
        "where entry = 'job' group by all order by rank"
    )
    own = journal.kernels
    of_job = own[own["entry"] == "job"].groupby("rank")["total_ms"].sum()

    assert isinstance(found, pd.DataFrame)
    assert found["rank"].tolist() == [0, 1]
    assert found["ms"].tolist() == pytest.approx(of_job.tolist())
    with pytest.raises(PerfnbError, match="cannot be run"):
        journal.sql("select nothing from entries")
