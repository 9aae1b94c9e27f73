"""Settings of a fake fleet: read, checked, and never showing a key."""

from __future__ import annotations

import json
import math
import pickle
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from shared_tools import each

from qreward.errors import ConfigError
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency, Phase
from qreward.testing.server import FAULTS
from qreward.testing.spec import read_spec


@each(
    "wrong, message",
    [
        ({"max_concurency": 4}, r"max_concurency.*did you mean 'max_concurrency'"),
        ({"faults": {"error_502": 0.1}}, r"error_502.*did you mean 'error_50"),
        ({"scoring": {"max_token": 3}}, "did you mean 'max_tokens'"),
        ({"kind": "tgi"}, "kind"),
        ({"faults": {"reset": 0.6, "hang": 0.5}}, "more than 1"),
        ({"phases": [{"behaviour": "dead", "start": 2, "end": 1}]}, "end must be later"),
        ({"responder": "ecko"}, "'echo', 'judge'.*, not 'ecko'; did you mean 'echo'?"),
        ({"responder": "jugde"}, "did you mean 'judge'?"),
        ({"responder": "oracle"}, "or a function, not 'oracle'"),
        ({"burst": 5}, "without rpm"),
        ({"models": ["judge-["]}, "not closed"),
        ({"latency": {"base": math.inf}}, "finite"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_spec({"endpoints": [{"name": "a", **wrong}]})


def test_a_fleet_has_endpoints_and_their_names_differ() -> None:
    with pytest.raises(ConfigError, match="several endpoints have the name 'a'; give each a name of its own"):
        FakeFleet([FakeEndpoint("a"), FakeEndpoint("a")])
    with pytest.raises(ConfigError, match="endpoints"):
        FakeFleet([])


def test_a_spec_file_says_the_same_as_python(tmp_path: Path) -> None:
    spec = {"endpoints": [{"name": "a", "latency": {"base": 0.5}, "phases": [{"behaviour": "dead", "start": 1}]}]}
    for path in (tmp_path / f"fleet{suffix}" for suffix in (".json", ".yaml", ".yml")):
        path.write_text(json.dumps(spec))
        assert read_spec(path).endpoints == (FakeEndpoint("a", latency=Latency(base=0.5), phases=[Phase(behaviour="dead", start=1)]),)
        assert read_spec(str(path)) == read_spec(path)


def test_the_value_of_a_variable_in_a_spec_file_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "$ecret")
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps({"endpoints": [{"name": "a", "api_key": "${JUDGE_KEY}"}]}))
    (endpoint,) = read_spec(path).endpoints
    assert endpoint.api_key is not None
    assert endpoint.api_key.get_secret_value() == "$ecret"


def test_a_spec_file_that_is_none_or_missing_is_named_in_the_error(tmp_path: Path) -> None:
    for name, text in (("a.json", "{"), ("a.yaml", "a: [}"), ("a.yaml", "- 1"), ("a.json", "[]")):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=re.escape(name)):
            read_spec(tmp_path / name)
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        FakeFleet(tmp_path / "none.yaml")


def test_a_key_is_read_from_the_environment_and_shows_nowhere_but_on_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "hush-hush")
    endpoint = FakeEndpoint("a", api_key="${JUDGE_KEY}")
    fleet = FakeFleet([endpoint])
    shown = [repr(endpoint), str(endpoint), repr(fleet), repr(vars(fleet)), endpoint.model_dump_json(), repr(endpoint.model_dump())]
    assert not [text for text in shown if "hush" in text]
    assert pickle.loads(pickle.dumps(endpoint)) == endpoint
    assert endpoint.api_key is not None
    assert endpoint.api_key.get_secret_value() == "hush-hush"


def test_the_length_of_an_answer_depends_on_its_request_and_the_seed_and_is_lognormal_with_the_mean_that_was_asked_for() -> None:
    def lengths(count: int, **settings: Any) -> list[int]:
        return [Latency(**settings).draw(number.to_bytes(32, "big")) for number in range(count)]

    assert set(lengths(50, tokens=17)) == {17}
    drawn = lengths(20_000, tokens=1000, sigma=0.8, seed=7)
    assert min(drawn) >= 1
    # Standard error of the mean is 1000 * sqrt(exp(.64) - 1) / sqrt(20000) = 6.7, of the mean logarithm .8 / sqrt(20000) = .006.
    assert abs(fmean(drawn) - 1000) < 35, "seed 7"
    assert abs(fmean(map(math.log, drawn)) - (math.log(1000) - 0.32)) < 0.03, "seed 7"
    assert lengths(100, tokens=1000, sigma=0.8, seed=7, base=3) == drawn[:100]
    assert len({tuple(lengths(20, sigma=0.8, seed=seed)) for seed in (0, 1, -1, 2**60, -(2**60))}) == 5
    assert min(lengths(500, tokens=1, sigma=5)) == 1


def test_each_fault_that_can_be_set_is_in_the_table_of_what_the_server_does() -> None:
    assert set(FAULTS) == set(Faults.model_fields) - {"trickle_gap", "point", "seed"}
    assert Faults(reset=0.5, trickle_gap=9, seed=3).rates() == {"reset": 0.5}
