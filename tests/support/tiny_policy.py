"""A tiny Qwen2 model with random weights: what an engine needs to start, made in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SPECIALS = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tiny_policy(directory: Path, seed: int = 0) -> Path:
    """Write model and tokenizer (bytes and six marks) into `directory`, and return it."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

    tokens = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made: Any = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[],
        unk_token=None,  # pyright: ignore[reportArgumentType]  # bytes are never unknown
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=list(SPECIALS[2:]),
    )
    made.chat_template = TEMPLATE
    made.save_pretrained(directory)
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    torch.manual_seed(seed)
    Qwen2ForCausalLM(
        Qwen2Config(
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
    ).save_pretrained(directory)
    return directory
