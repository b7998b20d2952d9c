"""Secrets that are recognized by the name before them: in JSON, YAML, environments, headers, queries, code, prose.

A telling name (`password`, `api_key`) makes what is assigned to it a secret, unless that is a placeholder or an
expression of code; a name that has other uses too (`token`, `key`, `sig`) only if the value is random.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import re2

from relight.observability.secret_shapes import Shape, Span, rules
from relight.observability.secret_values import (
    SHORT,
    UUID,
    byte_pattern,
    is_given,
    is_mixed,
    is_placeholder,
    is_random,
    is_user_and_password,
    is_word,
)

_S = r"(?:[-_. ]|%20)?"
KEYS = (
    "api|access|private|secret|signing|encryption|decryption|master|account|shared|storage|subscription|hmac|consumer"
    "|client|licen[cs]e|deploy|webhook|jwt|app|application|auth|authentication|service|session|server|ssh|functions?"
    "|integration|write|admin|security|ingest|ingestion|instrumentation|secondary"
)
TOKENS = (
    "access|refresh|auth|bearer|session|security|api|csrf|xsrf|oauth2?|bot|personal|deploy|vault|registry|npm|github"
    "|gitlab|gh|slack|discord|telegram|identity|client|login|reset|verification|device|webhook|jwt|hf|huggingface"
    "|secret|admin|service|private|app|application|hub|pypi|docker|upload|root|magic|invite|verify|plex|figma|shopify"
    "|consul|nomad|jfrog|circle|sentry|rollbar"
)
TELLING = (
    r"(?:cookie2?|authori[sz]ation|x-auth|pass(?:word|wd|phrase|code)|passwort|kennwort|mot de passe|senha|wachtwoord"
    r"|contrase[^\s:=]{1,6}a|pwd|secret|credential|code[-_.]?verifier|device[-_.]?code|client[-_.]?assertion"
    rf"|conn(?:ection)?{_S}string|mnemonic|seed{_S}phrase|recovery{_S}(?:code|phrase)"
    rf"|(?:{KEYS}){_S}key|(?:\b|[^a-z])id{_S}token|(?:{TOKENS}){_S}(?:access{_S})?token|redis(?:cli)?_auth"
    rf"|client{_S}key{_S}data|phpsessid|jsessionid|asp\.net_sessionid|connect\.sid)s?"
)
SUFFIX = (
    r"(?:[-_.]?(?:[0-9]{1,2}|base64|b64|prod|production|dev|development|staging|test|live|value|plain|plaintext|text"
    r"|base|raw|old|new|current|default|main|backup|primary|secondary))?"
)
HINTING = (
    r"(?:tokens?|keys?|signature|x-amz-credential|webhook"
    r"|(?:\b|[^a-z])(?:auth|sig|sess|sid|jwt|hmac|pat|otp|salt|pass|pw|creds?|bearer|li_at|psk"
    r"|app[-_.]?id))"
)
"""Of these the value counts only if it is random, or, of `pass`, if it is no word."""
UNTELLING = byte_pattern(
    rb"(?i)(?:primary|foreign|sort|partition|cache|idempotency|object|s3|dict|row|hash|group|public|unique|join|index"
    rb"|range|routing|shard|etag|next|page|continuation|sync|pad|eos|bos|unk|sep|mask|cls|stop|special|image|start|end"
    rb"|max|(?:^|[^a-z])min|num|total|prompt|completion|input|output|cached|reasoning|status|exit|error|dedup|deduplication|trace"
    rb"|span|blob|file|git|commit|content|body|source|tree|verifying|lock|package|integrity|message|request|response"
    rb"|item|record|document|doc)[-_. ]?$"
)
"""What stands before a hinting name that is none: `cache_key`."""
ASSIGN = (
    rf"(?i:({TELLING}{SUFFIX})|({HINTING}))"
    r"(?:(?:[\\\"'\x60\]*]|%2[27]|&quot;){0,8}\s{0,8}"
    r"(=>|:=|:\s?[A-Za-z_][\w.\[\]]{0,40}(?:\s\|\s\w{1,20})?\s?=|={1,3}|->|:{1,2}|\||>|,|\(|%3[ADad]|\s(?:is|was|are)\s)\s{0,8}"
    r"|\s{1,3})"
)
"""A telling or a hinting name, and what assigns a value to it."""
PAIR = Shape(
    rf"(?i:\b(?:name|key|id|header)\\*[\"']?\s*[:=]\s*\\*[\"']?[\w.-]*{TELLING}{SUFFIX}\\*[\"']?[\s,;]*"
    r"(?:\\*[\"']?value\\*[\"']?\s*[:=]\s*\\*[\"']?|\r?\n\r?\n))([^\s\"'\\<>,;}\]]{3,})",
    is_given,
)
"""A name and a value of fields of their own, as in manifests and forms."""
PROSE = Shape(
    rf"(?i:{TELLING}(?:\s[a-z']{{1,16}}){{1,6}}(?:\s?[:=]|\s(?:is|was))\s{{0,4}}[\"'\x60(]{{0,3}})([A-Za-z0-9_+/=.~-]{{10,}})",
    lambda secret: is_random(secret.rstrip(b"."), 10),
)
"""A telling name a few words before the value."""
BLOCK = Shape(
    rf"(?im:^[ \t]*[\w.\"'-]*{TELLING}{SUFFIX}[\"']?:[ \t]*[>|][+-]?[ \t]*\r?\n[ \t]+([^\s:]{{6,}})[ \t]*$)", is_given
)
"""YAML's block on the next line."""
INPUT = Shape(r"(?i:\btype=\\*[\"']?password\b[^<>]*?\bvalue=\\*[\"']?([^\"'\\<>]{3,}))", is_given)
DEFAULT = Shape(
    rf"(?i:\bvariable\s+\\*\"[\w-]*(?:{TELLING}|{HINTING})\\*\"\s*\{{[^{{}}]*?\bdefault\s*=\s*\\*\"([^\"\\]{{8,}}))",
    is_random,
)
"""Of a variable of Terraform."""
SESSION = Shape(r"(?i:session(?:[-_.]?id)?=|[?&]code=)([A-Za-z0-9%._~+/=-]{16,})", is_random)
"""Only as cookies and parameters are written: under other names, sessions are dialogues, and codes are programs."""
ARN = byte_pattern(rb"arn:[a-z-]+:[\w:/-]*$")
_BLANK = r"(?:\s|\\[nrt])"
_OPENED = r"(?:[\s\\\"'\x60(]|\\[nrt])*"
_RANDOM = r"(?:[A-Za-z_+/=.~%-]*[0-9][A-Za-z0-9_+/=.~%-]{4}|[A-Za-z_+/=.~%-]{6,}[0-9])"
MAYBE = (
    rf"(?i:{TELLING}{SUFFIX}(?:[\"'\x60=|>%&]|\*{{0,2}}:(?:[^\\]|\\[^nrt])|\\+[\"'ux]|->|{_BLANK}+(?:\\*[=:|>\"'-]|(?:is|was|are){_BLANK}+[^\s]*[0-9!@#$%^*+~?]|value)"
    rf"|\s+{_RANDOM}|(?:\s[a-z']+){{1,6}}(?:\s?[:=]|\s(?:is|was)){_OPENED}{_RANDOM}|\()|-{TELLING}{SUFFIX}\s+[^\s-])",
    rf"(?i:{HINTING})(?:[^A-Za-z0-9:=]|\\[nrtu])*(?:[:=]|%3[aAdD]|u003[aAdD]|is\b)[=:]*>?"
    rf"(?:{_OPENED}|[burf]{{1,2}}[\"']|%22|&quot;)*{_RANDOM}"
    rf"|(?i:(?:^|[^A-Za-z])(?:pass|pw|creds?)[\\\"'\x60]*{_BLANK}*[:=]){_OPENED}[^\s\"'\\,;&<>|)]*"
    r"(?:[0-9!@#$%^*+~?]|[a-z][A-Z]{1,2}[a-z])"
    r"|(?i:auth[\\\"'\s]*[:=][\\\"'\s]*[A-Za-z0-9+/]{8,}={0,2}(?:[\\\"'\s]|$))"
    r"|(?i:(?:session(?:[-_.]?id)?|[?&]code)=[A-Za-z0-9%._~+/=-]{16})"
    rf"|(?i:{HINTING}\s*:?=\s*[A-Za-z_][\w.:]*!?\(\s*[burf]?\\*[\"']){_RANDOM}"
    rf"|(?i:{HINTING}\\*[\"']\s?:\s?\{{[^{{}}]{{0,40}}:\s?\\*[\"']){_RANDOM}"
    rf"|(?i:-{HINTING}\\*[\"'][\s,]|[\"']{HINTING}\\*[\"'],|token(?:\s|\\n){{1,3}}[A-Za-z0-9_-]{{24}}|variable(?:\s|\\t)+\\*\"[\w-]*{HINTING}\\*\"|:\s?str(?:\s\|\s\w+)?\s?=)",
)
"""Of these one matches JSON wherever a name makes a value in it a secret."""
QUOTED = byte_pattern(rb"(?i:(?:secretstr|secretbytes|bytes|str)\(|[\[(]|[burf]{1,2})?(\\*)(\"\"\"|'''|[\"'\x60])")
BARE = byte_pattern(rb"[^\s\"'\x60<>,;&|)\]}\\]+")
WRAPPED = byte_pattern(rb"[A-Za-z_][\w.:]{0,40}!?\(\s{0,4}[burf]{0,2}\\*[\"']([^\"'\\\s]{16,})\\*[\"']")
"""What is made of a text by a call, as `String::from("...")`."""
TOKEN = byte_pattern(rb"(?i)token$")
SPOKEN = byte_pattern(rb"[A-Za-z0-9_-]{24,}")
COOKIES = byte_pattern(rb"[^\r\n\"'\x60\\]+")
PARAMETERS = byte_pattern(rb"[^\r\n']+")
WHOLE = byte_pattern(rb"[^\s\"'\x60]+")
SCHEMES = byte_pattern(
    rb"(?i)(?:bearer|basic|token|digest|negotiate|api-?key|ntlm|hawk|signature|aws4-hmac-sha256|sso-key|bot|oauth|key"
    rb"|splunk|geniekey|dpop|sharedkey|sharedaccesssignature|pve[a-z]*)[\s=:]+"
)
MANY = (b"digest", b"aws4", b"hawk", b"signature", b"oauth", b"sharedaccess")
"""Schemes whose credentials are parameters on the rest of the line."""
AUTHORIZATION = byte_pattern(rb"(?i)(?:authori[sz]ation|x-auth)$")
COOKIE = byte_pattern(rb"(?i)cookie2?s?$")
EXPRESSION = byte_pattern(
    rb"[A-Za-z_][\w.]*[(\[{]|(?:self|this|settings|config|cfg|os|env|process|args|opts?)\.|f?\{|\$"
)
LINE_START = byte_pattern(rb"(?i)(?:^|[\n\r]|\\n)[ \t]*(?:(?:export|set|env|arg|-e|-)[ \t]+)?[\w.\"'-]*$")
PARAMETER = byte_pattern(rb"[?&#][\w.\[\]-]*$")
FLAG = byte_pattern(rb"(?:^|[\s\"'=])--?[\w-]*$")
APART = byte_pattern(rb"(?:^|[\s;&?|])[\w.-]*$")
NAME = byte_pattern(f"(?i:{TELLING}{SUFFIX})$".encode())
HINT = byte_pattern(f"(?i:{HINTING})$".encode())
COUNTED: Any = re2.compile(r"(?i)tokens?$")
_TELLING = byte_pattern(f"(?i:{TELLING})".encode())
_ASSIGN = byte_pattern(ASSIGN.encode())
_HEX = byte_pattern(rb"[0-9a-fA-F]*")
ASSIGNS = (b":", b"=", b":=", b"=>", b"%3a", b"%3d", b"is")
"""What may stand between a hinting name and its value."""
CLOSERS = (b"\n", b",", b")", b";", b"]", b"}", b"+ ", b"% ")
"""What follows a quote that closes instead of opening."""
MAX_EXAMINED = 500
"""Assignments of one text that are examined: hostile text has hundred thousand in a megabyte. Of the rest, whatever is
assigned to a telling name counts as a secret.
"""
_REST = byte_pattern(
    rf"(?i:{TELLING}{SUFFIX})(?:[\\\"'\x60\]*]|%2[27]|&quot;){{0,8}}\s{{0,8}}(?:[:=]|=>|%3[ADad])\s{{0,8}}"
    r"\\*[\"'\x60]?([^\s\"'\x60<>,;&|)\]}\\]{4,})".encode()
)
LONGEST = 2048
"""Bytes of a value without quotes: what is refused must cost no more, or many names would cost its square."""
_ENDS = (b"", b"\n", b"\r", b" ", b"\t", b";", b"&", b"\\")


def assigned(data: bytes) -> Iterator[Span]:
    """Where secrets are that have a name."""
    for shape in (PAIR, PROSE, BLOCK, INPUT, DEFAULT, SESSION):
        yield from shape.spans(data)
    at = examined = 0
    while (match := _ASSIGN.search(data, at)) is not None:
        if (examined := examined + 1) > MAX_EXAMINED:
            yield from (found.span(1) for found in _REST.finditer(data, match.start()))
            return
        at = match.end()
        span = _value(data, match)
        if span is not None:
            yield span
            at = max(at, span[1])


def is_telling(name: str) -> bool:
    """Whether whatever has this name is secret."""
    return _of_name(name)[0]


def is_hinting(name: str) -> bool:
    """Whether what has this name may be secret."""
    return _of_name(name)[1] is not None


def is_count(name: str) -> bool:
    """Whether a number of this name counts tokens."""
    return COUNTED.search(name) is not None


def is_label(value: str) -> bool:
    """Whether text stands for a secret or speaks of it instead of being one."""
    return not _is_quoted_secret(b":", value.encode("utf-8", "replace"))


def is_secret(name: str, value: str) -> bool:
    """Whether a text is secret because of its name, which need not be telling."""
    _, hinting, vendors = _of_name(name)
    if not (hinting or vendors) or not value:
        return False
    data = value.encode("utf-8", "replace")
    if hinting and _hinted(*hinting, data):
        return True
    line = f'{name}="'.encode("utf-8", "replace")
    probe = line + data[:SHORT] + b'"'
    return any(span[1] > len(line) for rule in vendors for span in rule.spans(probe))


@lru_cache(maxsize=4096)
def _of_name(name: str) -> tuple[bool, tuple[bytes, bytes] | None, list[Shape]]:
    """Whether a name is telling; the hint in it and what is before; and the rules of vendors that it names."""
    data = name[-200:].encode("utf-8", "replace")
    hint = HINT.search(data)
    lowered = data.lower()
    vendors = [rule for rule in rules() if any(word.encode() in lowered for word in rule.keywords)]
    return NAME.search(data) is not None, (hint.group(), data[: hint.start()]) if hint else None, vendors


def _value(data: bytes, match: Any) -> Span | None:
    """The value of one assignment if it is a secret."""
    telling, hint = match.group(1), match.group(2)
    operator = (match.group(3) or b"").strip().lower()
    before = data[max(0, match.start() - 64) : match.start()]
    quoted = _quoted(data, match.end())
    if quoted is not None:
        value = data[quoted[0] : quoted[1]]
        listed = operator == b"," and (FLAG.search(before) or before.endswith((b"'", b'"')))
        assigns = operator in ASSIGNS or operator.endswith(b"=") or listed
        secret = _is_quoted_secret(operator, value) if telling else assigns and _hinted(hint, before, value)
        secret = secret and not value.lstrip(b" ").startswith(CLOSERS)
        return quoted if secret else None
    if operator in ASSIGNS and (wrapped := WRAPPED.match(data, match.end(), match.end() + LONGEST)):
        return wrapped.span(1) if is_random(wrapped.group(1)) else None
    bare = BARE.match(data, match.end(), match.end() + LONGEST)
    if bare is None or b"\n" in data[match.end(1 if telling else 2) : match.end()] or ARN.search(before):
        return None
    if hint:
        spoken = not operator and TOKEN.search(hint) and SPOKEN.fullmatch(bare.group().rstrip(b".,;"))
        return bare.span() if (spoken or operator in ASSIGNS) and _hinted(hint, before, bare.group()) else None
    if operator and (AUTHORIZATION.search(telling) or COOKIE.search(telling)):
        return _header(data, match)
    if not operator:
        return bare.span() if _is_spaced_secret(before, bare.group()) else None
    return _bare(data, match, bare, operator, before)


def _quoted(data: bytes, at: int) -> Span | None:
    """The text between quotes that begin here; quotes may be escaped, as in JSON within a text."""
    opened = QUOTED.match(data, at)
    if opened is None:
        return None
    start, level, quote = opened.end(), len(opened.group(1)), opened.group(2)
    at = start
    for _ in range(64):
        at = data.find(quote, at, start + 16384)
        if at < 0:
            return None
        slashes = at - len(data[start:at].rstrip(b"\\")) - start
        if slashes == level or (level and slashes < level) or (not level and slashes % 2 == 0):
            end = at - slashes if level else at
            return (start, end) if end > start else None
        at += 1
    return None


def _is_quoted_secret(operator: bytes, value: bytes) -> bool:
    """Whether quoted text under a telling name is a secret and no placeholder or label."""
    scheme = SCHEMES.match(value)
    if not value or is_placeholder(value[scheme.end() :] if scheme else value):
        return False
    if b" " in value and _TELLING.search(value[:SHORT]) is not None and scheme is None:
        return b"=" in value
    if operator == b"(":
        return is_random(value) or is_random(value, 10)
    return is_mixed(value, 6) if operator in (b"", b",", b"|", b"->") else True


def _is_spaced_secret(before: bytes, value: bytes) -> bool:
    """Whether what follows a telling name after white space alone is a secret, as after a command's option."""
    if FLAG.search(before) is not None and not value.startswith(b"-"):
        return is_mixed(value, 4)
    value = value.rstrip(b".,;:!?")
    return is_random(value) or is_random(value, 10)


def _header(data: bytes, match: Any) -> Span | None:
    """The credentials of an authorization header without their scheme, or cookies."""
    if COOKIE.search(match.group(1)):
        line = COOKIES.match(data, match.end(), match.end() + LONGEST)
        return line.span() if line and b"=" in line.group() else None
    scheme = SCHEMES.match(data, match.end())
    start = scheme.end() if scheme else match.end()
    value = BARE.match(data, start, start + LONGEST)
    if value is None or is_placeholder(value.group()):
        return None
    if scheme and scheme.group().lower().startswith(MANY):
        return PARAMETERS.match(data, start, start + LONGEST).span()
    found = value.group()
    if (is_word(found) and len(found) < 16) or not (scheme or is_mixed(found, 8)):
        return None
    return value.span()


def _bare(data: bytes, match: Any, bare: Any, operator: bytes, before: bytes) -> Span | None:
    """A value without quotes under a telling name."""
    start, end = bare.span()
    begins_line = LINE_START.search(before) is not None
    if begins_line and operator in (b"=", b":"):
        end = start + len(WHOLE.match(data, start, start + LONGEST).group().rstrip(b",;)]}\\"))
    value, after = data[start:end], data[end : end + 1]
    if end - start < 4 or is_placeholder(value) or EXPRESSION.match(value):
        return None
    if operator in (b",", b"("):
        return None
    if operator == b">":
        return (start, end) if after == b"<" and not _TELLING.search(value[:SHORT]) else None
    if is_mixed(value, 6 if operator in (b"is", b"was", b"are", b"|", b"->") else 4):
        return (start, end)
    if not is_word(value) or after not in _ENDS or _TELLING.search(value[:SHORT]) is not None:
        return None
    tight = operator == b"=" and data[match.end(1) : match.end()] == b"="
    alone = tight and (APART.search(before) or PARAMETER.search(before))
    fills_line = begins_line and after in (b"", b"\n", b"\r") and operator in (b"=", b":")
    return (start, end) if alone or fills_line else None


def _hinted(hint: bytes, before: bytes, value: bytes) -> bool:
    """Whether the value of a name that has other uses too is a secret."""
    hint = hint.lower()
    if UNTELLING.search(before) is not None or is_placeholder(value):
        return False
    if hint.endswith((b"pass", b"pw", b"cred", b"creds")):
        return b" " not in value and is_mixed(value, 4) and EXPRESSION.match(value) is None
    if hint.endswith(b"auth") and is_user_and_password(value):
        return True
    if hint.startswith(b"key") and _HEX.fullmatch(value):
        return False
    return is_random(value) or (hint.startswith(b"token") and UUID.fullmatch(value) is not None)
