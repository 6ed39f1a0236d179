"""The data of the findings tab for the browser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perfnb import quantities as fmt
from perfnb.draw import escape
from perfnb.findings.view import grows, row_words, verdict_lines

if TYPE_CHECKING:
    from perfnb.findings import Findings

_SENTENCE, _CODE = 2000, 300


def findings_data(findings: Findings, layers: Mapping[str, int], ops: Mapping[str, int]) -> dict[str, Any]:
    """Verdict and findings, ready for JSON.

    Parameters
    ----------
    findings : Findings
    layers, ops : mapping of str to int
        The position of each row in the tables of layers and ops, for links from findings; an instant of memory is
        linked by its nanoseconds.
    """
    places: dict[str, Mapping[str, int]] = {"layer": layers, "op": ops}
    verdict = findings.verdict
    return {
        "verdict": [[head, escape.plain(words, _SENTENCE)] for head, words in verdict_lines(findings)],
        "finding": verdict.finding,
        "rows": [
            {
                "bottleneck": escape.plain(row["bottleneck"]),
                "bound_ms": fmt.known(row["bound_ms"]),
                "bound_share": fmt.known(row["bound_share"]),
                "bound_bytes": fmt.known(row["bound_bytes"]),
                "grows": grows(row),
                "confidence": escape.plain(row["confidence"]),
                **{name: escape.plain(row[name], _SENTENCE) for name in ("evidence", "lever", "why", "blind")},
                "code": escape.plain(row["code"], _CODE),
                "links": [
                    {
                        "kind": one["kind"],
                        "word": escape.plain(row_words(one), 120),
                        "at": round(1e6 * float(one["name"]))
                        if one["kind"] == "memory"
                        else places.get(one["kind"], {}).get(one["name"], -1),
                    }
                    for one in row["rows"]
                ],
            }
            for _, row in findings.table.iterrows()
        ],
    }
