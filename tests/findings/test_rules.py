"""Every bottleneck that can appear belongs to a registered rule, with words for its verdict."""

from __future__ import annotations

import ast
from pathlib import Path

from perfnb.findings import rules
from perfnb.findings.finding import Rule
from perfnb.findings.gpu_facts import HELD
from perfnb.findings.rules import BY_NAME, RULES

MODULES = sorted(Path(rules.__file__).parent.glob("*.py"))


def test_every_finding_that_is_written_has_a_registered_rule() -> None:
    written = {
        call.args[0].value
        for path in MODULES
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call)
        and getattr(call.func, "id", "") == "Finding"
        and isinstance(call.args[0], ast.Constant)
    }

    assert written == set(BY_NAME)


def test_every_rule_of_a_module_is_registered() -> None:
    names = [f"{rules.__name__}.{path.stem}" for path in MODULES if path.stem != "__init__"]
    modules = [__import__(name, fromlist=["_"]) for name in names]
    written = {id(value) for module in modules for value in vars(module).values() if isinstance(value, Rule)}

    assert written == {id(rule) for rule in RULES}


def test_rules_of_one_name_say_the_same() -> None:
    for rule in RULES:
        same = BY_NAME[rule.name]
        assert (rule.headline, rule.saving, rule.ceiling) == (same.headline, same.saving, same.ceiling)
        assert rule.headline or not rule.explained
        assert rule.idle_cause in ("", *HELD)
