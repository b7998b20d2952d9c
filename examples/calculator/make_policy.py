"""Writes policy/: a tiny Qwen2 model, pre-trained so that it knows the task but makes an error in every second call.

    python examples/calculator/make_policy.py     (about three minutes; needs torch and transformers)

First it learns from correct demonstrations, then from sloppy ones, with a wrong operand, a wrong operator or broken
syntax. What training with rewards has to bring back is the care. No question of heldout.jsonl is ever shown. The same
seed makes the same policy, up to the rounding of the machine.
"""

from __future__ import annotations

import argparse
import random
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from make_data import one_call, split, two_calls
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

HERE = Path(__file__).parent
SPECIALS = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
MERGES = (("a", "d"), ("ad", "d"), ("s", "u"), ("su", "b"), ("m", "u"), ("mu", "l"))
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NAMES = {"+": "add", "-": "sub", "*": "mul"}
QUESTION = re.compile(r"\(?(\d)([-+*])(\d)\)?(?:([-+*])(\d))?\?")
SLIP = 0.51  # the share of sloppy demonstrations: the policy starts at about 0.5
BATCH = 64
IGNORED = -100  # what the loss of transformers leaves out


@dataclass(frozen=True)
class Call:
    """A tool call: what the policy has to write in one turn."""

    name: str
    left: int
    right: int

    def text(self) -> str:
        """The text that the policy writes."""
        return f"{self.name}({self.left},{self.right})"

    def result(self) -> int:
        """What the tool answers."""
        return {"add": self.left + self.right, "sub": self.left - self.right, "mul": self.left * self.right}[self.name]


class Demonstrator:
    """Writes episodes as token ids, with labels on what the policy has to write."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        self.tokenizer = tokenizer
        self.rng = random.Random(seed)
        _, heldout = split()
        hidden = {task["question"] for task in heldout}
        self.pools = [
            [task["question"] for task in pool if task["question"] not in hidden] for pool in (one_call(), two_calls())
        ]

    def episode(self, slip: float) -> tuple[list[int], list[int]]:
        """One conversation about a random question, whose calls are sloppy with probability `slip`."""
        question = self.rng.choice(self.rng.choice(self.pools))
        match = QUESTION.fullmatch(question)
        assert match is not None
        a, first, b, then, c = match.groups()
        call = Call(NAMES[first], int(a), int(b))
        written = self.write(call, slip)
        ids, labels = self.turn(question, written)
        if then is not None and written == call.text():
            ids_2, labels_2 = self.turn(str(call.result()), self.write(Call(NAMES[then], call.result(), int(c)), slip))
            ids, labels = ids + ids_2, labels + labels_2
        return ids, labels

    def turn(self, told: str, written: str) -> tuple[list[int], list[int]]:
        """The prompt of the policy, and its answer."""
        message = [{"role": "user", "content": told}]
        prompt = self.tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
        answer = [*self.tokenizer.encode(written), self.tokenizer.eos_token_id]
        return prompt + answer, [IGNORED] * len(prompt) + answer

    def write(self, call: Call, slip: float) -> str:
        """The call, or with probability `slip` a wrong one."""
        if self.rng.random() >= slip:
            return call.text()
        return self.rng.choice([self.wrong_left, self.wrong_right, self.wrong_name, self.broken])(call)

    def wrong_left(self, call: Call) -> str:
        """Another number of as many digits, or fewer."""
        numbers = range(10 if call.left < 10 else 100)
        return replace(call, left=self.rng.choice([number for number in numbers if number != call.left])).text()

    def wrong_right(self, call: Call) -> str:
        """Another digit."""
        return replace(call, right=self.rng.choice([digit for digit in range(10) if digit != call.right])).text()

    def wrong_name(self, call: Call) -> str:
        """Another tool."""
        return replace(call, name=self.rng.choice([name for name in NAMES.values() if name != call.name])).text()

    def broken(self, call: Call) -> str:
        """One of the three marks is missing."""
        return call.text().replace(self.rng.choice("(,)"), "")


def make_tokenizer(directory: Path) -> Any:
    """Bytes, the three tool names and six marks; returned as vLLM and verl will load it.

    Beside a Qwen2 model AutoTokenizer makes a Qwen2Tokenizer of any saved one, so it is one from the start.
    """
    tokens = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=list(MERGES),
        unk_token=None,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=list(SPECIALS[2:]),
        model_max_length=512,
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)
    return AutoTokenizer.from_pretrained(directory)


def make_model(tokenizer: Any) -> Qwen2ForCausalLM:
    """About 0.36 million parameters."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config)


def train(model: Qwen2ForCausalLM, demonstrator: Demonstrator, batches: int, lr: float, slip: float) -> None:
    """Supervised training; the learning rate rises over 50 batches and then falls to 0."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / 50, 1 - n / batches))
    loss = torch.tensor(0.0)
    for _ in range(batches):
        episodes = [demonstrator.episode(slip) for _ in range(BATCH)]
        width = max(len(ids) for ids, _ in episodes)
        inputs = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in episodes])
        labels = torch.tensor([marks + [IGNORED] * (width - len(marks)) for _, marks in episodes])
        loss = model(input_ids=inputs, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    print(f"{batches} batches, {slip:.0%} sloppy: loss {loss.item():.3f}")


def main() -> None:
    """Write the policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=HERE / "policy")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    tokenizer = make_tokenizer(options.directory)
    model = make_model(tokenizer)
    demonstrator = Demonstrator(tokenizer, options.seed)
    train(model, demonstrator, batches=1000, lr=2e-3, slip=0.0)
    train(model, demonstrator, batches=300, lr=1e-3, slip=SLIP)
    model.save_pretrained(options.directory)


if __name__ == "__main__":
    main()
