"""An agent that says its secrets wherever an agent can say anything. Loaded by path into the template process."""

from __future__ import annotations

import sys

from relight.emitter import emit_message, emit_object, operation

SECRETS = [
    "sk-canary00AAAAbbbbCCCCdddd",
    "canary01.AAAAbbbbCCCCdddd",
    "ghp_canary02AAAAbbbbCCCCddddEEEEffffGGGG",
    "canary03-plain-but-named",
    "hf_canary04AAAAbbbbCCCCddddEEEEffff",
    "canary05-a-password",
    "canary06pw",
    "sk-proj-canary07AAAAbbbbCCCCddddEEEE",
    "AKIACANARY08AAAABBBB",
    "xoxb-canary09AAAAbbbbCCCC",
]


def leaky(task, rollout):
    print("stdout", SECRETS[0])
    print("stderr", f"Authorization: Bearer {SECRETS[1]}", file=sys.stderr)
    emit_message(f"a message with {SECRETS[2]}")
    emit_object({"api_key": SECRETS[3], "nested": [{"text": f"x={SECRETS[4]}"}]})
    with operation(name="tool", password=SECRETS[5], url=f"https://u:{SECRETS[6]}@example.com/"):
        pass
    if rollout.rollout_id.endswith("0"):
        raise RuntimeError(f"refused: {SECRETS[7]}")
    if rollout.rollout_id.endswith("2"):
        return f"no reward but {SECRETS[8]}"
    if rollout.rollout_id.endswith("4"):
        sys.exit(f"out with {SECRETS[9]}")
    return 1.0
