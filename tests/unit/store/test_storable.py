"""Values made fit for Postgres, and rewards judged."""

from __future__ import annotations

import orjson
from hypothesis import assume, given
from hypothesis import strategies as st

from relight.observability.redaction import Redactor
from relight.store.generations import distinct_groups, pack_body, to_json, unpack_body
from relight.store.storable import LARGEST_REWARD, storable, storable_text, with_reward_checked
from relight.types.rollout import FailureClass
from relight.types.wire import FinishRequest
from tests.support.store_kit import MemoryKit, call, opened

ANY_TEXT = st.text(st.characters(exclude_categories=[]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_any_value_becomes_json_that_postgres_accepts(value: object) -> None:
    text = orjson.dumps(storable(value))
    assert b"\\u0000" not in text
    assert storable(orjson.loads(text)) == orjson.loads(text)


@given(
    st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text("abc\xe9\U0001f600"), st.lists)
)
def test_ordinary_values_stay_what_they_are(value: object) -> None:
    assert storable(value) == value


@given(ANY_TEXT)
def test_text_keeps_its_length(text: str) -> None:
    clean = storable_text(text)
    assert len(clean) == len(text)
    clean.encode()


@given(st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False) | st.text() | st.integers(-9, 9)))
def test_a_body_comes_back_as_it_went_in(content: dict[str, object]) -> None:
    assume(Redactor().json(to_json(content)) == to_json(content))  # a key such as APIKEY makes its value a secret
    hash_, data = pack_body(content, Redactor())
    assert unpack_body(data) == content
    assert pack_body(content, Redactor())[0] == hash_


def test_a_body_with_values_that_orjson_refuses_is_stored_all_the_same() -> None:
    assert unpack_body(pack_body({"n": 10**30, "s": "\ud800"}, Redactor())[1]) == {"n": str(10**30), "s": "?"}


@given(st.none() | st.floats(), st.none() | st.sampled_from(FailureClass))
def test_only_a_finite_reward_without_a_failure_is_one(
    reward: float | None, failure_class: FailureClass | None
) -> None:
    final = with_reward_checked(FinishRequest(attempt_id="a", fence=1, reward=reward, failure_class=failure_class))
    if failure_class is not None:
        assert (final.failure_class, final.reward) == (failure_class, None)
    elif reward is None:
        assert (final.failure_class, final.reward) == (FailureClass.NO_REWARD, None)
    elif abs(reward) <= LARGEST_REWARD:
        assert (final.failure_class, final.reward) == (None, reward)
    else:
        assert (final.failure_class, final.reward) == (FailureClass.INVALID_REWARD, None)


@given(st.lists(st.integers(1, 4), max_size=12))
async def test_calls_are_grouped_in_order_without_repeats(numbers: list[int]) -> None:
    kit = MemoryKit()
    await kit.start()
    await kit.add_rollout("r1")
    attempt = await opened(kit)
    groups = distinct_groups([call(attempt, number) for number in numbers])
    assert [item.call_number for group in groups for item in group] == numbers
    assert all(len({item.call_number for item in group}) == len(group) for group in groups)
