"""The schema and the sentence that ask for a verdict: strict for every server, and true to the model."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypeAliasType

from qreward.errors import ConfigError
from qreward.judge.parsing import PreferenceVerdict, ScoreVerdict, Unreadable, YesNoVerdict, instruction, read, schema_of


class Kind(Enum):
    FACT = "fact"
    STYLE = "style"


class Fault(BaseModel):
    """What is wrong."""

    kind: Kind
    weight: int = Field(1, ge=1, le=3, description="how bad")
    where: str | None = None


class Detailed(BaseModel):
    """A long verdict.

    With more to say about it than a judge needs.
    """

    faults: list[Fault] = Field(default_factory=list, max_length=5)
    day: datetime.date = datetime.date(2020, 1, 1)
    tone: Literal["warm"] | Literal["cold"] = "warm"
    level: Literal[1, 2, 3]
    share: Annotated[float, Field(gt=0, lt=1, multiple_of=0.1)] = 0.5
    word: str = Field("ab", pattern="^[a-z]+$", max_length=5)
    sure: bool = True


class Tree(BaseModel):
    score: float
    parts: list[Tree] = []


class Cat(BaseModel):
    sort: Literal["cat"]


class Dog(BaseModel):
    sort: Literal["dog"]


class Pet(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="sort")]


ALLOWED = {"type", "enum", "description", "$ref", "$defs", "anyOf", "items", "properties", "required", "additionalProperties"}
MODELS = (ScoreVerdict, YesNoVerdict, PreferenceVerdict, Detailed, Tree, Pet)


def nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", [])]
    for node in [*inner, *([schema["items"]] if "items" in schema else [])]:
        yield from nodes(node)


def test_members_that_state_the_same_verdict_are_read_and_those_that_state_another_one_are_not() -> None:
    for model, members, expected in (
        (ScoreVerdict, {"score": 7, "final_score": "7"}, 7),
        (ScoreVerdict, {"score": "7", "Score": 7}, 7),
        (ScoreVerdict, {"score": 7, "overallScore": 7}, 7),
        (ScoreVerdict, {"score": 7, "rating": "good"}, 7),
        (ScoreVerdict, {"score": 3, "rating": "9"}, None),
        (ScoreVerdict, {"score": 3, "overall": "9/10"}, None),
        (ScoreVerdict, {"score": 3, "score_final": 9}, None),
        (ScoreVerdict, {"score": 3, "finalScore": 9}, None),
        (ScoreVerdict, {"score": 3, "maxScore": 100}, None),
        (PreferenceVerdict, {"preferred": "A", "winner": "Response A"}, 1.0),
        (PreferenceVerdict, {"preferred": "A", "winner": "B"}, None),
    ):
        try:
            scale = (0.0, 10.0) if model is ScoreVerdict else None
            found = read(json.dumps(members), model, scale=scale).score  # type: ignore[attr-defined]
        except Unreadable:
            found = None
        assert found == expected, members


def test_a_schema_keeps_to_what_strict_mode_takes() -> None:
    for schema in (schema_of(model, None) for model in MODELS):
        assert schema["type"] == "object"
        for node in nodes(schema):
            assert node.keys() <= ALLOWED
            assert node.keys() & {"type", "$ref", "anyOf"}
            if node.get("type") == "object":
                assert node["additionalProperties"] is False
                assert node["required"] == list(node["properties"])
            if "$ref" in node:
                assert node["$ref"].removeprefix("#/$defs/") in schema["$defs"]
                assert node.keys() <= {"$ref", "$defs"}
        assert json.loads(json.dumps(schema)) == schema


def test_members_keep_their_order_and_limits_stand_in_words() -> None:
    properties = schema_of(Detailed)["properties"]
    assert list(properties) == list(Detailed.model_fields)
    assert properties["faults"]["description"] == "at most 5 items"
    assert properties["share"]["description"] == "more than 0, less than 1, a multiple of 0.1"
    assert properties["word"]["description"] == "at most 5 characters, matching ^[a-z]+$"
    assert properties["day"]["description"] == "as date"
    assert properties["level"] == {"type": "integer", "enum": [1, 2, 3]}
    assert schema_of(Detailed)["$defs"]["Fault"]["properties"]["weight"]["description"] == "how bad; at least 1, at most 3"
    assert schema_of(Detailed)["description"] == "A long verdict."
    assert schema_of(unstrict(Literal[1, "a"]))["properties"]["held"] == {"enum": [1, "a"]}
    aliased = schema_of(unstrict(TypeAliasType("Held", float)), (0, 10))["properties"]["held"]
    assert aliased == {"$ref": "#/$defs/Held"}, "strict mode takes no description beside a reference"


def test_the_scale_is_described_at_the_field_that_decides() -> None:
    assert schema_of(ScoreVerdict, (0, 10))["properties"]["score"] == {"type": "number", "description": "from 0 to 10"}
    assert schema_of(ScoreVerdict, (0.5, 1))["properties"]["score"]["description"] == "from 0.5 to 1"
    assert schema_of(YesNoVerdict, (0, 10)) == schema_of(YesNoVerdict, None)
    assert list(schema_of(ScoreVerdict, (0, 10))["properties"]) == ["reason", "score"]


def test_making_a_schema_leaves_the_model_as_it_was() -> None:
    before = json.dumps(Detailed.model_json_schema())
    assert schema_of(Detailed, (0, 1)) == schema_of(Detailed, (0, 1))
    assert json.dumps(Detailed.model_json_schema()) == before


def test_a_model_that_holds_itself_has_an_object_at_its_root() -> None:
    schema = schema_of(Tree, (0, 10))
    assert schema["properties"]["score"]["description"] == "from 0 to 10"
    assert schema["properties"]["parts"]["items"] == {"$ref": "#/$defs/Tree"}


def unstrict(annotation: Any) -> type[BaseModel]:
    return type("Loose", (BaseModel,), {"__annotations__": {"held": annotation}, "__module__": __name__})


def test_what_no_strict_schema_states_is_refused_with_its_place() -> None:
    for annotation in (dict[str, int], Any, tuple[int, str], object, list[Any], dict):
        with pytest.raises(ConfigError, match="held"):
            schema_of(unstrict(annotation))
    with pytest.raises(ConfigError, match="has no JSON schema"):
        schema_of(unstrict(type))


def test_the_sentence_names_all_members_in_order_with_their_values() -> None:
    lines = instruction(ScoreVerdict, (0, 10)).splitlines()
    assert lines[1:] == ['"reason": text, why, in a few sentences', '"score": number, from 0 to 10']
    assert '"preferred": one of "A", "B", "tie"' in instruction(PreferenceVerdict)
    told = instruction(Detailed)
    assert '"faults": list of object with "kind", "weight", "where", What is wrong., at most 5 items' in told
    assert '"sure": true or false' in told
    assert '"level": one of 1, 2, 3' in told
    assert '"pet": object with "sort" or object with "sort"' in instruction(Pet)


def test_the_sentence_repeated_is_no_verdict() -> None:
    for model in (ScoreVerdict, YesNoVerdict, PreferenceVerdict):
        with pytest.raises(Unreadable):
            read(instruction(model, (0, 10)), model, scale=(0, 10))


def test_the_docstring_of_a_built_in_verdict_is_not_part_of_its_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema is part of the keys of cached answers. That of a user's model has its docstring, also if it extends a built-in one."""

    class Mine(ScoreVerdict):
        """Mine alone."""

    for model in (ScoreVerdict, YesNoVerdict, PreferenceVerdict):
        before = schema_of(model)
        monkeypatch.setattr(model, "__doc__", "Other words.")
        model.model_rebuild(force=True)
        assert schema_of(model) == before
    assert schema_of(Mine)["description"] == "Mine alone."
