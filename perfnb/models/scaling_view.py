"""Show a scaling study as a document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from perfnb import quantities as fmt
from perfnb.draw import palette
from perfnb.draw.document import Axis, Column, Document, Figure, Line, Series, Table, Unit, Verdict, cells_of
from perfnb.draw.palette import Mark

if TYPE_CHECKING:
    from perfnb.models.scaling import ScalingStudy

_MEASURED = Mark("measured", palette.DARK, "█", "solid")
_LAW = Mark("the law", palette.BLUE, "▓", "hatch")


def scaling_document(study: ScalingStudy) -> Document:
    """Return the document for a scaling study.

    It shows the law in a sentence, a chart with logarithmic axes, and the results at each size.
    """
    sizes = study.table["size"]
    band = () if study.law.exponent_ci is None else ("low_ms", "high_ms")  # two sizes have no interval
    return Document(
        "scaling study",
        device=study.device,
        verdict=_verdict(study),
        figures=tuple(_figures(study)),
        facts=(f"{fmt.counted(len(sizes), 'size')} from {size_words(sizes.iloc[0])} to {size_words(sizes.iloc[-1])}",),
        sections=(
            _chart(study, "Step time by size", "ms", "median_ms", ("ci_low_ms", "ci_high_ms"), band),
            *([_chart(study, "Peak memory by size", "bytes", "peak_bytes")] if study.memory_law is not None else []),
            _table(study),
        ),
        notes=study.notes,
    )


def size_words(size: float) -> str:
    """Format a size with all of its digits, for example ``1,024``. In the laws, it is accurate except for rounding."""
    return f"{float(size):,.10g}"


def _figures(study: ScalingStudy) -> Iterator[Figure]:
    if study.memory_law is not None:
        yield Figure("exponent of peak memory", study.memory_law.exponent, "number")
    if study.law.broken is None:
        twice = study.predict(2 * study.table["size"].iloc[-1])
        yield Figure(f"predicted at {size_words(twice.size)}", twice.median_ms, "ms", fmt.known_bounds(twice.ci_ms))
        if twice.peak_bytes is not None:
            yield Figure(f"peak memory at {size_words(twice.size)}", twice.peak_bytes, "bytes")


def _verdict(study: ScalingStudy) -> Verdict:
    law = study.law
    if (broken := law.broken) is not None:
        below, above = size_words(broken.below), size_words(broken.above)
        exponents = fmt.significant(broken.exponent_below), fmt.significant(broken.exponent_above)
        return Verdict(
            "bad",
            f"No single law: time grows as size^{exponents[0]} up to {below}, then as size^{exponents[1]} from {above}",
            f"There is a jump of {fmt.change(1 + broken.jump)} in between, for example because the data exceeds the "
            "size of a cache, or because another kernel is used.",
            f"Measure more sizes around {below} to {above}, and predict only within one of the two ranges.",
        )
    grows = fmt.with_interval(fmt.significant(law.exponent), law.exponent, law.exponent_ci)
    constant = f", plus a constant {fmt.duration(law.overhead)}" if law.overhead else ""
    if law.exponent_ci is None:
        sentence = f"Time grows as size^{grows}{constant} between two sizes, which are too few for an interval"
        return Verdict("open", sentence, next="Measure five or more sizes to find out whether a single law holds.")
    return Verdict("none", f"Time grows as size^{grows}{constant}")


def _chart(
    study: ScalingStudy, title: str, unit: Unit, name: str, measured: tuple[str, ...] = (), band: tuple[str, ...] = ()
) -> Series:
    """Return the law's curve with its band, and the measurements on it."""
    curve = study.curve
    table = study.table.set_index("size").reindex(curve["size"])
    lines = (
        Line(_LAW, *(cells_of(curve[column]) for column in (name, *band))),
        Line(_MEASURED, *(cells_of(table[column]) for column in (name, *measured))),
    )
    return Series(title, Axis("size", "count", log=True), Axis("", unit, log=True), curve["size"].tolist(), lines)


def _table(study: ScalingStudy) -> Table:
    columns = {
        "size": Column("size"),
        ("median_ms", "ci_low_ms", "ci_high_ms"): Column("measured", "ms"),
        ("predicted_ms", "low_ms", "high_ms"): Column(
            "predicted", "ms", help="by the law, with its 95 % interval for a new median"
        ),
        "residual": Column("off by", "share", 1, help="measured relative to predicted"),
        "peak_bytes": Column("peak memory", "bytes", 1),
        "flops": Column("FLOPs", "flops", 2),
    }
    shown = study.table.merge(study.curve[["size", "low_ms", "high_ms"]], on="size")
    return Table.of("Measurements by size", shown.assign(size=shown["size"].map(size_words)), columns, noun="size")
