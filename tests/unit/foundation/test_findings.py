"""A flood of problems stays readable: twenty of each kind, then a number."""

from __future__ import annotations

import json

import pytest

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, ScenarioError
from ais_bench_prefix_cache.foundation.findings import Findings, nearest, quoted, shown


def test_twenty_of_each_code_and_the_number_of_the_others() -> None:
    findings = Findings()
    for number in range(25):
        findings.add(Code.WRONG_VALUE, f"line {number}", "m")
    findings.add(Code.MISSING_KEY, "line 3", "n", allowed="a", hint="h")
    *first, key, rest = findings.problems
    assert [problem.where for problem in first] == [f"line {number}" for number in range(20)]
    assert (key.code, key.allowed, key.hint) == (Code.MISSING_KEY, "a", "h")
    assert str(rest) == "5 more problems of the kind WRONG_VALUE"
    assert rest.code == "WRONG_VALUE"


def test_nothing_is_raised_where_nothing_was_found() -> None:
    findings = Findings()
    assert not findings
    findings.raise_if_any()
    findings.add(Code.WRONG_VALUE, "", "m")
    assert findings
    with pytest.raises(ArtifactError, match=r"^m$"):
        findings.raise_if_any()
    with pytest.raises(ScenarioError, match=r"^m$"):
        findings.raise_if_any(ScenarioError)


def test_values_are_cut_for_messages() -> None:
    assert shown("x" * 200) == "'" + "x" * 78 + "…"
    assert shown({"a": 1}) == "{'a': 1}"
    assert json.loads(quoted("é" * 70)) == "é" * 60 + "…"
    assert quoted("\ud800") == '"\\ud800"'


def test_the_nearest_word() -> None:
    assert nearest("prepair", ["prepare", "report"]) == "prepare"
    assert nearest("x", ["prepare", "report"]) is None
    assert nearest("prepare" * 20, ["prepare"]) is None
