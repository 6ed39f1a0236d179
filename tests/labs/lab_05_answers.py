"""Lab 5: what its tests share."""

from __future__ import annotations

import pandas as pd

from perfnb.models.architectures import ArchitectureComparison

SHARES = {"64": 0.56, "512": 0.83}


def figures_of() -> ArchitectureComparison:
    rows = {
        "mlp": (25_791, 3_267_456, 5_494_528, 0.9),
        "cnn": (25_866, 77_004_800, 152_829_952, 10.0),
        "transformer": (26_410, 54_829_056, 109_395_968, 15.0),
    }
    columns = ["parameters", "forward_flops", "backward_flops", "median_ms"]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("name")
    return ArchitectureComparison(
        table=table.astype(dict.fromkeys(columns[:3], "Int64") | {"median_ms": "Float64"}),
        shares=pd.DataFrame(
            [(name, "kind", "attention", share) for name, share in SHARES.items()],
            columns=["name", "by", "part", "share"],
        ),
        ratios=pd.DataFrame([("cnn", "transformer", 1.52)], columns=["a", "b", "ratio"]),
        layers={},
        training=True,
        device="CPU",
        batch="",
        rounds=20,
        equal_within=0.02,
    )


USES = {"mlp": 0.98974, "cnn": 23.258, "transformer": 16.219}


RATIO = 164_225_024 / 229_834_752
