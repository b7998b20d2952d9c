"""Generations to training rows."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from relight.adapter.training_rows import Generation, merge_breaks, rows_of, temperature_of_logprobs

ids = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def generation(number: int, prompt: list[int], answer: list[int]) -> Generation:
    return Generation(number, 0, prompt, answer, [-0.5] * len(answer))


@st.composite
def conversations(draw: st.DrawFn) -> list[Generation]:
    """Turns of which each continues the tokens of the one before."""
    so_far: list[int] = []
    turns: list[Generation] = []
    for number in range(1, draw(st.integers(1, 4)) + 1):
        so_far = so_far + draw(ids)
        answer = draw(ids)
        turns.append(generation(number, so_far, answer))
        so_far = so_far + answer
    return turns


@given(turns=conversations())
def test_a_conversation_becomes_one_trajectory_that_trains_exactly_what_the_model_wrote(
    turns: list[Generation],
) -> None:
    [row] = rows_of("r", "a", turns, "trajectory")
    assert row.prompt_ids + row.response_ids == turns[-1].prompt_ids + turns[-1].token_ids
    written = [token for token, mask in zip(row.response_ids, row.mask, strict=True) if mask]
    assert written == [token for turn in turns for token in turn.token_ids]
    assert len(row.sampled_logprobs) == len(row.mask) == len(row.response_ids)
    assert all((value == 0.0) == (mask == 0) for value, mask in zip(row.sampled_logprobs, row.mask, strict=True))
    assert row.calls == [turn.call_number for turn in turns]


@given(turns=conversations())
def test_at_transition_level_each_call_is_a_row(turns: list[Generation]) -> None:
    rows = rows_of("r", "a", turns, "transition")
    assert [(row.prompt_ids, row.response_ids) for row in rows] == [(turn.prompt_ids, turn.token_ids) for turn in turns]
    assert merge_breaks(rows) == len(turns) - 1


def test_a_conversation_whose_tokens_break_starts_a_new_row() -> None:
    turns = [generation(1, [1, 2], [3]), generation(2, [1, 2, 4, 5], [6])]
    rows = rows_of("r", "a", turns, "trajectory")
    assert [row.calls for row in rows] == [[1], [2]]
    assert merge_breaks(rows) == 1


@given(turns=st.lists(conversations(), min_size=2, max_size=3), dice=st.randoms(use_true_random=False))
def test_conversations_of_sub_agents_that_take_turns_become_a_row_each(
    turns: list[list[Generation]], dice: random.Random
) -> None:
    agents = [
        [replace(turn, prompt_ids=[100 + agent, *turn.prompt_ids]) for turn in own] for agent, own in enumerate(turns)
    ]
    order = [agent for agent, own in enumerate(agents) for _ in own]
    dice.shuffle(order)
    waiting = [iter(own) for own in agents]
    rows = rows_of("r", "a", [next(waiting[agent]) for agent in order], "trajectory")
    ended = sorted(own[-1].prompt_ids + own[-1].token_ids for own in agents)
    assert sorted(row.prompt_ids + row.response_ids for row in rows) == ended


def test_of_several_choices_the_one_that_the_agent_continued_with_is_continued() -> None:
    first = [Generation(1, choice, [1, 2], [3 + choice], [-0.5]) for choice in range(3)]
    second = [Generation(2, choice, [1, 2, 4, 9], [6 + choice], [-0.5]) for choice in range(2)]
    rows = rows_of("r", "a", [*first, *second], "trajectory")
    assert [(row.calls, row.prompt_ids, row.response_ids, row.mask) for row in rows] == [
        ([1], [1, 2], [3], [1]),
        ([1, 2], [1, 2], [4, 9, 6], [1, 0, 1]),
        ([1], [1, 2], [5], [1]),
        ([2], [1, 2, 4, 9], [7], [1]),
    ]


def test_the_longest_row_that_matches_is_continued() -> None:
    turns = [generation(1, [1], [2, 3]), generation(2, [1], [2]), generation(3, [1, 2, 3, 4], [5])]
    rows = rows_of("r", "a", turns, "trajectory")
    assert [row.calls for row in rows] == [[1, 3], [2]]


def test_an_attempt_without_calls_has_no_rows() -> None:
    assert rows_of("r", "a", [], "trajectory") == []


def test_a_temperature_above_0_has_vllms_lower_bound_and_0_is_greedy() -> None:
    asked = [None, 0, 1e-9, 9e-6, 0.005, 0.01, 0.02, 2.0]
    assert [temperature_of_logprobs(one) for one in asked] == [None, 1.0, 0.01, 0.01, 0.01, 0.01, 0.02, 2.0]
