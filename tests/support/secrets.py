"""Secrets of known shapes, and structures to hide them in, for hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

TOKEN = "".join(chr(code) for code in range(33, 127) if chr(code).isalnum()) + "_-"
WORD = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=8)


def letters(size: int, alphabet: str = TOKEN) -> st.SearchStrategy[str]:
    """Text of a secret's kind."""
    return st.text(alphabet, min_size=size, max_size=size)


SHAPED = st.one_of(
    letters(24).map("sk-{}".format),
    letters(40).map("sk-proj-{}".format),
    letters(36, TOKEN[:-2]).map("ghp_{}".format),
    letters(34, TOKEN[:-2]).map("hf_{}".format),
    letters(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789").map("AKIA{}".format),
    letters(35).map("AIza{}".format),
    letters(43).map("rl-{}".format),
    st.tuples(letters(12), letters(20), letters(20)).map("eyJ{0[0]}.eyJ{0[1]}.{0[2]}".format),
    letters(24, TOKEN[:-2]).map("xoxb-{}".format),
)
"""Told by what they look like."""
AROUND = st.sampled_from(["", " ", "\n", '"', "(", "=", "key: ", "\\", "é", "/", '{"a": "'])
"""What stands before a secret; after it comes one of these, or nothing."""
NAMES = st.sampled_from(
    ["password", "db.password", "OPENAI_API_KEY", "http.request.header.authorization", "clientSecret", "x-api-key"]
)
"""Names whose values are secret, whatever they look like."""


@st.composite
def planted(draw: st.DrawFn) -> tuple[str, Any]:
    """A secret, and a JSON object that holds it somewhere: in a text, in a name, or under a telling name."""
    if draw(st.booleans()):
        secret = draw(SHAPED)
        value: Any = draw(AROUND) + secret + draw(st.sampled_from(["", " ", "\n", '"', ")", ",", "é", "&x=1"]))
        held: Any = {value: draw(WORD)} if draw(st.booleans()) else {"text": value}
    else:
        secret = "q7" + draw(letters(10, "abcdefghijklmnopqrstuvwxyz0123456789"))
        value = secret if draw(st.booleans()) else [draw(WORD), {"inner": secret}]
        held = {draw(NAMES): value}
    for _ in range(draw(st.integers(0, 4))):
        held = {draw(WORD): held, "beside": draw(WORD)} if draw(st.booleans()) else {"list": [draw(WORD), held]}
    return secret, held
