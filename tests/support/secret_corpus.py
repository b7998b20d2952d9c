"""Secrets in realistic surroundings, and texts without any, to measure redaction by.

Neither comes from the rules: `secret_corpus.txt` and `harmless_corpus.txt` are written by hand; code and prose are the
standard library's and this repository's own. Random parts are filled in here, so no file holds a secret.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import inspect
import json
import random
import re
import string
import traceback
import urllib.parse
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ALPHABETS = {
    "b62": string.ascii_letters + string.digits,
    "b64": string.ascii_letters + string.digits + "+/",
    "url": string.ascii_letters + string.digits + "-_",
    "hex": "0123456789abcdef",
    "up": string.ascii_uppercase + "234567",
    "low": string.ascii_lowercase + string.digits,
    "d": string.digits,
}
MODULES = [
    "argparse",
    "ast",
    "calendar",
    "configparser",
    "csv",
    "datetime",
    "decimal",
    "difflib",
    "doctest",
    "email.message",
    "fractions",
    "ftplib",
    "getpass",
    "gettext",
    "hmac",
    "html.parser",
    "http.client",
    "http.cookies",
    "imaplib",
    "inspect",
    "json.decoder",
    "locale",
    "logging.config",
    "mailbox",
    "netrc",
    "optparse",
    "os",
    "pathlib",
    "pickle",
    "plistlib",
    "poplib",
    "random",
    "secrets",
    "shutil",
    "smtplib",
    "socket",
    "sqlite3.dbapi2",
    "ssl",
    "statistics",
    "subprocess",
    "tarfile",
    "tempfile",
    "textwrap",
    "tokenize",
    "typing",
    "urllib.parse",
    "urllib.request",
    "uuid",
    "webbrowser",
    "xml.dom.minidom",
    "xmlrpc.client",
    "zipfile",
]
"""Of the standard library."""
HANDLE_SECRETS = {
    *("ftplib", "getpass", "hmac", "http.client", "http.cookies", "imaplib", "netrc", "poplib", "secrets"),
    *("smtplib", "ssl", "urllib.request", "zipfile"),
}
"""Those of them whose code is full of passwords, keys and cookies."""


HEADS = (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"\xff\xd8\xff\xe0\0\x10JFIF\0", b"GIF89a", b"%PDF-1.7\n%\xe2\xe3\n")
"""With which files begin that are sent as base64."""


@dataclass(frozen=True)
class Planted:
    """One text or JSON object with secrets in it."""

    kind: str
    form: str
    held: Any
    """As it is given to the redactor."""
    secrets: list[str]
    """As they stand in it; none where the form encodes them."""
    hidden: Any
    """The same with the secrets left out, in the same form."""


def filled(template: str, chance: random.Random) -> str:
    """The template with its random parts."""

    def part(match: re.Match[str]) -> str:
        name, size = match.group(1), match.group(2)
        if name == "uuid":
            return str(uuid.UUID(int=chance.getrandbits(128), version=4))
        if name == "userpass":
            return base64.b64encode(f"robot:{''.join(chance.choices(ALPHABETS['b62'], k=14))}".encode()).decode()
        if name == "pem64":
            lines = "\n".join("".join(chance.choices(ALPHABETS["b64"], k=64)) for _ in range(4))
            pem = f"-----BEGIN RSA PRIVATE KEY-----\n{lines}\n-----END RSA PRIVATE KEY-----\n"
            return base64.b64encode(pem.encode()).decode()
        return "".join(chance.choices(ALPHABETS[name], k=int(size)))

    return re.sub(r"\{(b62|b64|url|hex|up|low|d|uuid|userpass|pem64)(?::(\d+))?\}", part, template)


FORMS: dict[str, Callable[[str], Any]] = {
    "text": str,
    "object": json.loads,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "percent": lambda text: urllib.parse.quote(text, safe=""),
    "unicode": lambda text: text.replace('"', "\\u0022"),
    "nested": lambda text: json.dumps({"output": text}),
    "html": lambda text: text.replace('"', "&quot;"),
}
BREAKS = {"\\n": "\n", "\\r": "\r", "\\t": "\t"}


def planted(seed: int, name: str = "secret_corpus") -> list[Planted]:
    """All secrets of a corpus, with random parts of this seed."""
    chance = random.Random(seed)
    return [_planted(line, chance) for line in _lines(name)]


def _lines(name: str) -> list[str]:
    lines = (HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _planted(line: str, chance: random.Random) -> Planted:
    kind, form, template = line.split("\t", 2)
    text = filled(template, chance)
    if form not in ("object", "nested"):
        text = re.sub(r"\\[nrt]", lambda match: BREAKS[match.group()], text)
    secrets = re.findall("⟦(.*?)⟧", text, re.DOTALL)
    held = FORMS[form](re.sub("[⟦⟧]", "", text))
    return Planted(kind, form, held, secrets, FORMS[form](re.sub("⟦.*?⟧", "", text, flags=re.DOTALL)))


def remains(case: Planted, redacted: Any) -> bool:
    """Whether a secret, or half of it, is still in what was redacted, decoded if need be."""
    text = redacted if isinstance(redacted, str) else orjson.dumps(redacted).decode()
    seen = [text, urllib.parse.unquote(text), text.replace("\\n", "\n")]
    seen += [_decoded(run) for run in re.findall(r"[A-Za-z0-9+/]{16,}={0,2}", text)]
    pieces = [piece for secret in case.secrets for piece in _pieces(secret)]
    return any(piece in one for piece in pieces for one in seen)


def _pieces(secret: str) -> list[str]:
    half = len(secret) // 2
    return [secret] if len(secret) < 16 else [secret[:half], secret[half:]]


def _decoded(run: str) -> str:
    padded = run.rstrip("=")
    return base64.b64decode(padded[: len(padded) // 4 * 4]).decode(errors="replace")


def harmless(seed: int) -> list[str]:
    """At least 5,000 texts without a secret."""
    chance = random.Random(seed)
    return [
        *harmless_by_hand(chance, "harmless_corpus"),
        *_identifiers(chance),
        *_images(chance),
        *_code(),
        *_prose(),
        *_tracebacks(),
    ]


def harmless_by_hand(chance: random.Random, name: str) -> Iterator[str]:
    """The harmless texts of a file, those with random parts five times."""
    for line in _lines(name):
        text = re.sub(r"\\[nrt]", lambda match: BREAKS[match.group()], line)
        times = 5 if re.search(r"\{(b62|b64|url|hex|up|low|d|uuid)(:\d+)?\}", text) else 1
        yield from (filled(text, chance) for _ in range(times))


def _identifiers(chance: random.Random) -> Iterator[str]:
    for number in range(250):
        data = chance.randbytes(40)
        stamp = f"2026-{number % 12 + 1:02}-{number % 28 + 1:02}T{number % 24:02}:00:0{number % 10}.{number:03}Z"
        yield str(uuid.UUID(bytes=data[:16], version=4))
        yield f"commit {hashlib.sha1(data).hexdigest()}"
        yield f"sha256:{hashlib.sha256(data).hexdigest()}"
        yield f"{hashlib.md5(data).hexdigest()}  dist/model-{number}.tar.gz"
        yield f'"integrity": "sha512-{base64.b64encode(hashlib.sha512(data).digest()).decode()}"'
        yield f"index {data[:4].hex()}..{data[4:8].hex()} 100644"
        yield f"trace_id={data[:16].hex()} span_id={data[16:24].hex()} at {stamp}"
        yield f'{{"id": "chatcmpl-{filled("{b62:29}", chance)}", "created": {chance.randrange(10**9, 2 * 10**9)}}}'
        yield f'{{"tool_call_id": "call_{filled("{b62:24}", chance)}", "type": "function"}}'
        yield " ".join(str(chance.randrange(200_000)) for _ in range(12))
        yield " ".join(f"{chance.gauss(0, 3):.6f}" for _ in range(8))


def _images(chance: random.Random) -> Iterator[str]:
    for head in HEADS:
        for size in range(20, 400, 20):
            data = base64.b64encode(head + chance.randbytes(size * 7)).decode()
            yield f"data:image/png;base64,{data}"
            yield json.dumps({"source": {"type": "base64", "media_type": "image/png", "data": data}})


def _code(modules: Iterable[str] = MODULES) -> Iterator[str]:
    for name in sorted(modules):
        source = inspect.getsource(importlib.import_module(name))
        for block in re.split(r"\n(?=(?:class|def|    def|@)\b)", source):
            if block.strip():
                yield block


def _prose() -> Iterator[str]:
    for path in sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]):
        if path.name != "spans.md":  # which shows what is redacted
            yield from (part for part in path.read_text(encoding="utf-8").split("\n\n") if part.strip())


def _tracebacks() -> Iterator[str]:
    calls: list[Callable[[], Any]] = [
        lambda: json.loads("{"),
        lambda: int("x"),
        lambda: {}["token"],
        lambda: base64.b64decode("a", validate=True),
        lambda: uuid.UUID("x"),
        lambda: "".encode("ascii").decode("no-such"),
        lambda: [].pop(),
        lambda: Path("/nonexistent/.env/secret.txt").read_bytes(),
    ]
    for call in calls:
        try:
            call()
        except Exception:  # each of these calls fails in its own way, and its report is what is wanted
            yield traceback.format_exc()


def ordinary_spans(chance: random.Random, size: int) -> list[bytes]:
    """JSON of spans' attributes as agents send them, of this many bytes in all."""
    texts = [*_prose(), *_code(set(MODULES) - HANDLE_SECRETS)]
    spans: list[bytes] = []
    left = size
    while left > 0:
        spans.append(orjson.dumps(_attributes(chance, texts)))
        left -= len(spans[-1])
    return spans


def _attributes(chance: random.Random, texts: list[str]) -> dict[str, Any]:
    """One model call, or one call of a tool."""
    said = [_shuffled(chance, chance.choice(texts)) for _ in range(chance.randrange(1, 6))]
    fields: dict[str, Any] = {
        "gen_ai.request.model": chance.choice(["gpt-4o-mini-2024-07-18", "Qwen/Qwen2.5-7B-Instruct"]),
        "gen_ai.response.id": filled("chatcmpl-{b62:29}", chance),
        "gen_ai.usage.input_tokens": chance.randrange(9000),
        "gen_ai.usage.output_tokens": chance.randrange(900),
        "session.id": filled("{uuid}", chance),
        "tool.result": {"path": f"src/module_{chance.randrange(99)}.py", "sha256": filled("{hex:64}", chance)},
        "logprobs": [round(-chance.random() * 5, 6) for _ in range(40)],
        "token_ids": [chance.randrange(150_000) for _ in range(80)],
    }
    for number, text in enumerate(said):
        fields[f"gen_ai.prompt.{number}.role"] = chance.choice(["user", "assistant", "tool"])
        fields[f"gen_ai.prompt.{number}.content"] = text
    return fields


def _shuffled(chance: random.Random, text: str) -> str:
    """The lines of a text in another order, some numbers changed, so that no two texts are the same."""
    lines = text.splitlines()
    chance.shuffle(lines)
    return re.sub(r"[0-9]+", lambda _: str(chance.randrange(10_000)), "\n".join(lines))
