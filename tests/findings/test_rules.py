"""Every rule that is written is asked, and has words for its verdict: of steps, of runs and of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from perfnb.findings import rules
from perfnb.findings.finding import Rule
from perfnb.findings.gpu_facts import HELD
from perfnb.loop import run_rules
from perfnb.ranks import findings as job_rules

NAMES = [path.stem for path in sorted(Path(rules.__file__).parent.glob("*.py")) if path.stem != "__init__"]
OF_STEPS = [__import__(f"{rules.__name__}.{name}", fromlist=["_"]) for name in NAMES]


@pytest.mark.parametrize(
    ("modules", "asked"),
    [(OF_STEPS, rules.RULES), ([run_rules], run_rules.RULES), ([job_rules], (*job_rules.RULES, *job_rules.IN_ALL))],
)
def test_every_rule_of_a_module_is_asked(modules: list[ModuleType], asked: Sequence[Rule]) -> None:
    written = {id(value) for module in modules for value in vars(module).values() if isinstance(value, Rule)}

    assert written == {id(rule) for rule in asked}


@pytest.mark.parametrize("asked", [rules.RULES, run_rules.RULES, (*job_rules.RULES, *job_rules.IN_ALL)])
def test_rules_of_one_name_say_the_same(asked: Sequence[Rule]) -> None:
    by_name = {rule.name: rule for rule in asked}
    for rule in asked:
        same = by_name[rule.name]
        assert (rule.headline, rule.saving, rule.ceiling) == (same.headline, same.saving, same.ceiling)
        assert rule.headline or not rule.explained
        assert rule.idle_cause in ("", *HELD)
