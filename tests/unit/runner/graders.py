"""Graders, good and bad, and the agents that they judge. Loaded by path into the fork server's process."""

from __future__ import annotations

import os
import time

from relight.emitter import emit_reward


def judge(task):
    assert set(task) == {"input", "calls", "output"}
    said = [call["response"]["choices"][0]["text"] for call in task["calls"]]
    asked = [call["request"]["messages"][0]["content"] for call in task["calls"]]
    right = task["input"] == {"question": "7*8"} and asked == ["hash-1"] and said == ["56"]
    return 0.875 if right and "thinking" in task["output"] else 0.0


async def judge_async(task):
    return 0.5


def judge_by_name(task):
    return {"exact": 0.5, "short": 1.0, "feedback": "too long"}, "exact"


def judge_by_many_names(task):
    return {f"part-{number:02d}": number / 16 for number in range(20)}, "part-19"


def raises(task):
    raise ValueError("no idea")


def dies(task):
    os._exit(3)


def gives_nan(task):
    return float("nan")


def gives_nothing(task):
    return None


def gives_words(task):
    return "very good"


def hangs(task):
    time.sleep(600)


def wants_a_model(task, llm):
    return 1.0


def sure_of_itself(task):
    print("thinking")
    emit_reward(1.0)
    return 1.0


def talks(task):
    print("thinking")
    return "done"


def fails(task):
    raise RuntimeError("broken")
