"""Settings of a fake fleet: read, checked, and never showing a key."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qreward.errors import ConfigError
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency, Phase
from qreward.testing.faults import FAULTS
from qreward.testing.server import to_data
from qreward.testing.spec import read_spec

EXAMPLE = Path(__file__).parents[2] / "examples" / "data" / "fleet.yaml"


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_a_misspelt_setting_is_an_error_that_offers_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"max_concurency.*did you mean 'max_concurrency'"):
        FakeEndpoint("a", max_concurency=4)
    with pytest.raises(ConfigError, match=r"error_502.*did you mean 'error_50"):
        read_spec({"endpoints": [{"name": "a", "faults": {"error_502": 0.1}}]})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"faults": {"reset": 0.6, "hang": 0.5}}, "more than 1"),
        ({"phases": [{"behaviour": "dead", "start": 2, "end": 1}]}, "end must be later"),
        ({"responder": "ecko"}, "'echo', 'judge'"),
        ({"burst": 5}, "without rpm"),
        ({"burst_tokens": 5}, "without tpm"),
        ({"models": ["judge-["]}, "not closed"),
        ({"latency": {"base": math.inf}}, "finite"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FakeEndpoint("a", **wrong)


def test_names_must_differ_because_counters_go_by_name() -> None:
    with pytest.raises(ConfigError, match="several endpoints have the name 'a'; give each a name of its own"):
        FakeFleet([FakeEndpoint("a"), FakeEndpoint("a")])


def test_an_empty_fleet_is_an_error() -> None:
    with pytest.raises(ConfigError, match="endpoints"):
        FakeFleet([])


def test_a_spec_file_says_the_same_as_python(tmp_path: Path) -> None:
    spec = {"endpoints": [{"name": "a", "latency": {"base": 0.5}, "phases": [{"behaviour": "dead", "start": 1}]}]}
    for path in (tmp_path / f"fleet{suffix}" for suffix in (".json", ".yaml", ".yml")):
        path.write_text(json.dumps(spec))
        assert read_spec(path).endpoints == (FakeEndpoint("a", latency=Latency(base=0.5), phases=[Phase(behaviour="dead", start=1)]),)
        assert read_spec(str(path)) == read_spec(path)


def test_a_spec_file_that_is_none_or_missing_is_named_in_the_error(tmp_path: Path) -> None:
    for name, text in (("a.json", "{"), ("a.yaml", "a: [}"), ("a.yaml", "- 1"), ("a.json", "[]")):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=re.escape(name)):
            read_spec(tmp_path / name)
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        FakeFleet(tmp_path / "none.yaml")


def test_the_example_spec_is_a_fleet_of_three_uneven_judges() -> None:
    endpoints = read_spec(EXAMPLE).endpoints
    assert [endpoint.responder for endpoint in endpoints] == ["judge"] * 3
    assert len({(endpoint.max_concurrency, endpoint.rpm, endpoint.latency) for endpoint in endpoints}) == 3


def test_a_key_is_read_from_the_environment_and_shows_nowhere_but_on_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "hush-hush")
    endpoint = FakeEndpoint("a", api_key="${JUDGE_KEY}")
    fleet = FakeFleet([endpoint])
    shown = [repr(endpoint), str(endpoint), repr(fleet), repr(vars(fleet)), endpoint.model_dump_json(), repr(endpoint.model_dump())]
    assert not [text for text in shown if "hush" in text]
    assert FakeEndpoint(**to_data(endpoint)) == endpoint
    assert endpoint.api_key is not None
    assert endpoint.api_key.get_secret_value() == "hush-hush"


def test_without_sigma_all_answers_have_the_mean_length() -> None:
    assert {Latency(tokens=17).draw(digest(number)) for number in range(50)} == {17}


@given(st.integers(0, 2**64), st.integers(-(2**60), 2**60))
def test_a_request_has_one_length_whenever_it_comes(number: int, seed: int) -> None:
    latency = Latency(tokens=100, sigma=0.8, seed=seed)
    assert latency.draw(digest(number)) == Latency(tokens=100, sigma=0.8, seed=seed, base=3).draw(digest(number)) >= 1


def test_lengths_are_lognormal_with_the_mean_that_was_asked_for() -> None:
    drawn = [Latency(tokens=1000, sigma=0.8, seed=7).draw(digest(number)) for number in range(20_000)]
    # Standard error of the mean is 1000 * sqrt(exp(.64) - 1) / sqrt(20000) = 6.7, of the mean logarithm .8 / sqrt(20000) = .006.
    assert abs(fmean(drawn) - 1000) < 35, "seed 7"
    assert abs(fmean(map(math.log, drawn)) - (math.log(1000) - 0.32)) < 0.03, "seed 7"


def test_another_seed_draws_other_lengths() -> None:
    lengths = [[Latency(sigma=0.8, seed=seed).draw(digest(number)) for number in range(20)] for seed in (0, 1, -1)]
    assert lengths[0] != lengths[1] != lengths[2] != lengths[0]


def test_rates_of_faults_list_only_what_can_happen() -> None:
    assert Faults(reset=0.5, trickle_gap=9, seed=3).rates() == {"reset": 0.5}


def test_every_fault_that_can_be_set_is_in_the_table_of_what_the_server_does() -> None:
    assert set(FAULTS) == set(Faults.model_fields) - {"trickle_gap", "point", "seed"}
