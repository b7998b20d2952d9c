"""Secrets that are recognized by their shape: keys of vendors, tokens, private keys, passwords in URLs, webhooks.

The rules of gitleaks are data (`secret_rules.json`, written by `scripts/secret_rules.py`); those here are wider where
agents cut or wrap secrets, or add kinds. Everything is matched as bytes by RE2, in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import orjson
import re2

from relight.observability.secret_values import entropy, is_given, is_mixed, is_random

Span = tuple[int, int]
MEMORY = 32 << 20
"""Bytes that the automaton of one pattern may take."""

BEFORE = r"(?:^|[^A-Za-z0-9]|\\[bfnrtu]|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|%[0-9A-Fa-f]{2})"
"""What stands before a token: nothing, no letter or digit, or an escaped character."""
BEFORE_PREFIX = BEFORE.replace("[^A-Za-z0-9]", "[^A-Za-z0-9+/]")
"""The same outside of base64."""
CERTAIN = (
    r"sk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic, OpenRouter, DeepSeek
    r"(?:sk|rk|pk|whsec)_(?:live_|test_|prod_)?[A-Za-z0-9]{24,}",
    r"gh[pousr]_[A-Za-z0-9]{30,}",
    r"github_pat_[A-Za-z0-9_]{30,}",
    r"gl(?:pat|rt|dt|ptt|ft|soat|agent|cbt|oas|imt|ffct)-[A-Za-z0-9_-]{16,}",
    r"(?:hf|gsk|r8|npm|fw|dckr_pat|dckr_oat|tskey|lsv2_pt|lsv2_sk)_[A-Za-z0-9_]{20,}",
    r"(?:xai|nvapi|pplx|tvly|pypi|csk|dapi)-[A-Za-z0-9_-]{20,}",
    r"(?:AKIA|ASIA|AROA|ABIA|ACCA|AIDA|AGPA|ANPA)[0-9A-Z]{16}",
    r"AIza[0-9A-Za-z_-]{30,}",
    r"GOCSPX-[0-9A-Za-z_-]{20,}",
    r"ya29\.[0-9A-Za-z_-]{20,}",
    r"(?:xox[abceoprsd]|xapp|xoxe\.xox[bp])-[A-Za-z0-9-]{10,}",
    r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,3}",  # JSON web tokens
    r"rl-[A-Za-z0-9_-]{32,}",  # ours
    r"\$(?:2[abxy]?\$[0-9]{2}|argon2(?:id|i|d)\$v=[^\s\"'\\]+|[156y]|apr1|scrypt|pbkdf2-sha(?:1|256|512)\$[^\s$]+)"
    r"\$[A-Za-z0-9./$=,+-]{20,}",  # hashes of passwords
    r"(?i:age-secret-key-1[0-9a-z]{40,})",
    r"A3-[A-Z0-9]{6}(?:-[A-Z0-9]{5,6}){4,5}",  # 1Password
)
"""Of these shapes, each a token as a whole."""
PREFIXED = (
    r"(?:api_org|whsec|sess|pat|pul|rdme|ntn|secret|figd|lin_api|lin_oauth|sbp|sb_secret|vercel|vcp|nfp|shpat|shpca"
    r"|shppa|shpss|doo_v1|dop_v1|dor_v1|glsa|glc|pnu|pscale_[a-z]+|sntrys|sntryu|ph[cxs]|e2b|rpa|jina|tgp|tgp_v1"
    r"|fo1|fm2|fal|cpk|sqp|squ|sqa|rubygems|re|cfut|cfat|ops|wandb_v1|apify_api|tfp|EZAK|EZTK|zpka|duffel_[a-z]+"
    r"|shippo_[a-z]+|sm_[a-z]at|cal_live|ATCTT3|AQVN|lip|clojars|CLOJARS)_[A-Za-z0-9+/=_-]{20,}",
    r"(?:tskey|AIP|bsk|ctx7sk|tk-us|key|voyage|pa|pul|ico|fio-u|mlsn|xkeysib|xsmtpsib|CFPAT|NRAK|NRII|NRJS|HRKU|PMAK"
    r"|API|FLWSECK|FLWSECK_TEST|s-s4t2[a-z]{2}|dnkey|fc|p8e|bedrock-api-key|phc|sso-key|lsv2)-"
    r"[A-Za-z0-9_-]{20,}",
    r"(?:dp\.[a-z]{2,5}|hv[sbr]|dt0[cs][0-9]{2}|mlsn|sl|pat|sat|t1|v1\.0|vault:v1)[.:-][A-Za-z0-9_.=+/-]{20,}",
    r"dapi[a-f0-9]{32}",
    r"(?:LTAI|AKID|ABSK|GOOG1?|EAA|AKCp|ATATT3|ATBB|EAAA)[0-9A-Za-z+/_=-]{16,}",
    r"1//0[0-9A-Za-z_-]{30,}",  # Google's refresh tokens
    r"(?:AC|SK)[a-f0-9]{32}",  # Twilio
    r"sq0(?:atp|csp|idp)-[A-Za-z0-9_-]{20,}",  # Square
    r"amzn\.(?:mws|oa2)[A-Za-z0-9.-]{30,}",
)
"""Of these shapes and random: many an ordinary name begins so too."""
MARKED = (
    r"[0-9]{8,10}:AA[A-Za-z0-9_-]{30,}",  # Telegram
    r"[MNO][A-Za-z0-9_-]{22,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}",  # Discord
    r"[0-9a-f]{32}-us[0-9]{1,2}",  # Mailchimp
    r"[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,}",  # Entra
    r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}",  # Airtable
    r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{40,}",  # Terraform
)
"""Random too; what distinguishes them does not come first."""
MARKS = (
    r":AA[A-Za-z0-9_-]{12}|\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27}|[0-9a-f]{4}-us[0-9]|[0-9]Q~|\.atlasv1\.|_mmk"
    r"|pat[A-Za-z0-9]{14}\.[a-f0-9]"
)
"""What distinguishes them, and the rules of gitleaks that begin with any letter."""
PEM = (
    r"(?s:-----BEGIN [A-Z0-9 ]*PRIVATE KEY.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----|\z))",
    r"(?s:PuTTY-User-Key-File-[23].*?Private-MAC: ?[0-9a-f]*)",
)
TOKEN = r"[A-Za-z0-9._~+/=-]"
SCHEME = rf"(?i:\b(?:bearer|basic|apikey|digest)(?:\s|%20|\+){{1,3}}[\\\"']{{0,3}})({TOKEN}{{12,}})"
URL = r"[A-Za-z][A-Za-z0-9+.-]{1,20}:(?:\\?/){2}"
IN_URL = rf"{URL}[^/\s:@\"'\\<>?#]*:([^\s\"'\\<>]+)@[^\s@\"'\\<>/]"
USER_IN_URL = rf"{URL}([A-Za-z0-9_.~-]{{16,}})(?::[^\s@/:\"'\\<>]*)?@[A-Za-z0-9]"
USER_OPTION = r"\s--user(?:\s{1,4}|=)[\"'\\]{0,2}[A-Za-z][\w.-]*:([^\s\"'\\]{6,})"
WEBHOOKS = (
    r"hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/([A-Za-z0-9+/_-]{20,})",
    r"discord(?:app)?\.com/api/(?:v[0-9]+/)?webhooks/[0-9]+/([A-Za-z0-9_-]{20,})",
    r"(?:outlook\.office(?:365)?|webhook\.office)\.com/webhookb?2?/([A-Za-z0-9@/_-]{30,})",
    r"hooks\.zapier\.com/hooks/catch/([A-Za-z0-9]+/[A-Za-z0-9]+)",
    r"api\.telegram\.org/(?:file/)?bot([0-9]+:[A-Za-z0-9_-]{20,})",
    r"hook\.(?:[a-z0-9]+\.)?(?:make|integromat)\.com/([a-z0-9]{20,})",
    r"maker\.ifttt\.com/trigger/[^/\s]+/(?:json/)?with/key/([A-Za-z0-9_-]{10,})",
    r"open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/v2/hook/([a-f0-9-]{20,})",
    r"qyapi\.weixin\.qq\.com/cgi-bin/webhook/send\?key=([a-f0-9-]{20,})",
    r"oapi\.dingtalk\.com/robot/send\?access_token=([a-f0-9]{20,})",
    r"(?:hc-ping\.com|healthchecks\.io/ping|webhook\.site|events\.pagerduty\.com/integration)/([A-Za-z0-9-]{20,})",
    r"/hooks/([a-z0-9]{26})\b",  # Mattermost
    r"rest/[0-9]+/([a-z0-9]{16})/[a-z]+\.",  # Bitrix
)
"""Each client that has the address may post: the part that can't be guessed is the secret."""
COMMANDS = (
    r"\bcurl\bGAP~(?:-u|--user|--proxy-user|-U)(?:~|=)?QUOTE[^\s:\"'\\$]+:ARGUMENT",
    r"\bsshpass~+-p~*QUOTEARGUMENT",
    r"\b(?:mysql|mysqldump|mysqladmin|mariadb|mariadb-dump)\bGAP[\s\"']-pQUOTEARGUMENT",
    r"\b(?:docker|podman|helm|buildah|skopeo|oc|az|nerdctl)\bGAP\blogin\bGAP~-p(?:~|=)?"
    r"QUOTEARGUMENT",
    r"\bredis-cli\bGAP~(?:-a|--pass)(?:~|=)QUOTEARGUMENT",
    r"\bldap[a-z]+\bGAP~-w~?QUOTEARGUMENT",
    r"\b(?:sqlcmd|bcp)\bGAP~-P~?QUOTEARGUMENT",
    r"\bmongo[a-z]*\bGAP~-p~?QUOTEARGUMENT",
    r"\b(?:smbclient|rpcclient)\bGAP~-U~?QUOTE[^\s%\"'\\]+%ARGUMENT",
    r"-(?:pass|passin|passout|k)~+QUOTEpass:ARGUMENT",
    r"\blogin~+(?:--?[a-z-]+(?:~|=)+)*([A-Za-z0-9_.-]{24,})",
    r"(?i:\bidentified~+(?:with~+\S+~+)?by~+(?:password~+)?\\{0,2}[\"']([^\"'\\]{3,}))",
    r"(?i:\bpassword~+\\{0,2}'([^'\\]{3,}))",
    r"(?i:\b(?:login|machine|user)~+\S+~+password~+(\S{3,}))",  # .netrc
    r"(?i:\b(?:requirepass|masterauth)~+[\"']?([^\s\"']{3,}))",
    r"(?m:^[a-z0-9.*-]+:(?:[0-9]{2,5}|\*):[a-zA-Z*][^\s:/]*:[a-zA-Z][^\s:/]*:([^\s:/][^\s:]{2,})$)",
    r"\bssh-keygen\bGAP~-N~?QUOTEARGUMENT|\.login\(~*key~*=~*QUOTEARGUMENT",
    r"\bgh~+secret~+set\bGAP~(?:-b|--body)[\s=]QUOTEARGUMENT",
    r"\b(?:un)?zip\bGAP~-P~?QUOTEARGUMENT|\b7z[a-z]?\bGAP~-pQUOTEARGUMENT",
    r"\bhttps?~GAP(?:-a|--auth)[\s=]QUOTE[^\s:\"'\\]+:ARGUMENT",
    r"(?i:pass(?:word|wd)?)[\"']?~*[=:]~*[\"']?([a-z0-9]{4}(?:~[a-z0-9]{4}){3})(?:[\s\"']|$)",
    r"\becho~+(?:-[en]+~+)?QUOTE(?:[\w.-]+:)?ARGUMENTQUOTE~*\|GAP(?:--password-stdin|--with-token|sudo~+-S|chpasswd)",
    r"(?:\bauth~*=~*\(|\.login\(|BasicAuth\()~*QUOTE[^\"'\\,()]+QUOTE~*,~*QUOTE([^\s\"'\\,()]{3,})[\"'\\]",
    r"\bhmac\.new\(~*b?[\"']([^\"'\\]{8,})|\bjwt\.(?:en|de)code\([^,()]+,~*\\*[\"']([^\"'\\]{8,})",
    r"(?:AKIA|ASIA)[0-9A-Z]{16}[^A-Za-z0-9\n]{1,8}([A-Za-z0-9+/]{40})(?:[^A-Za-z0-9+/]|$)",
    r"AC[0-9a-f]{32}[\"'\\]{0,2}[,:]~*[\"'\\]{0,2}([0-9a-f]{32})(?:[^0-9a-f]|$)",
    r"(?i:\b(?:user(?:name)?|login)~*/~*pass(?:word)?~*[:=]?~+\S+~*/~*(\S{3,}))",
)
"""Secrets among the arguments of commands and statements: `~` is white space, GAP anything on the line."""


def command(template: str) -> str:
    """The pattern of a template."""
    pattern = template.replace("~", r"\s").replace("GAP", r"[^\n|]*?").replace("QUOTE", r"[\"'\\]{0,2}")
    return pattern.replace("ARGUMENT", r"([^\s\"'\\]{3,})")


@dataclass(frozen=True, slots=True)
class Shape:
    """One pattern; its secret is the first group that matched, or else the whole match."""

    pattern: str
    check: Callable[[bytes], bool]
    keywords: frozenset[str] = frozenset()
    """In small letters; the pattern can only match where one of them stands. None: anywhere."""
    assigned: bool = False
    """Whether the pattern is a vendor's name and what is assigned to it."""

    def spans(self, data: bytes) -> Iterator[Span]:
        """Where the secrets are."""
        for match in compiled(self.pattern).finditer(data):
            start, end = next(
                (match.span(number) for number in range(1, match.re.groups + 1) if match.start(number) >= 0),
                match.span(),
            )
            if self.check(data[start:end]):
                yield start, end


@cache
def compiled(pattern: str) -> Any:
    """The pattern over bytes."""
    options = re2.Options()
    options.max_mem, options.log_errors, options.encoding = MEMORY, False, re2.Options.Encoding.LATIN1
    return re2.compile(pattern.encode(), options)


def either(patterns: Iterable[str]) -> str:
    """One pattern for all."""
    return "|".join(f"(?:{pattern})" for pattern in patterns)


def _is_token(secret: bytes) -> bool:
    return is_given(secret) and (len(secret) >= 24 or any(48 <= code < 58 for code in secret))


@cache
def rules() -> tuple[Shape, ...]:
    """The rules of gitleaks."""
    text = resources.files("relight.observability").joinpath("secret_rules.json").read_bytes()
    return tuple(_rule(rule) for rule in orjson.loads(text)["rules"])


def _rule(rule: dict[str, Any]) -> Shape:
    bits, assigned = rule["entropy"], rule["assigned"]

    def check(secret: bytes) -> bool:
        has_digit = any(48 <= code < 58 for code in secret)
        return entropy(secret) >= max(bits, 3.0 if assigned else 0) and (has_digit or not assigned)

    return Shape(rule["pattern"], check, frozenset(map(str.lower, rule["keywords"])), assigned)


SHAPES = (
    Shape(either(PEM), is_given),
    Shape(f"{BEFORE}({either(CERTAIN)})", is_given),
    Shape(f"{BEFORE_PREFIX}({either((*PREFIXED, *MARKED))})", is_random),
    Shape(SCHEME, _is_token),
    Shape(USER_OPTION, lambda secret: is_mixed(secret, 6)),
    Shape(IN_URL, is_given),
    Shape(USER_IN_URL, is_random),
    Shape(either(WEBHOOKS), is_given),
    Shape(either(map(command, COMMANDS)), is_given),
)


@cache
def _keywords() -> tuple[Any, list[list[Shape]]]:
    """A matcher of all keywords of the rules, and the rules of each."""
    by_word: dict[str, list[Shape]] = {}
    for rule in rules():
        for word in rule.keywords:
            by_word.setdefault(word, []).append(rule)
    matcher = re2.Set.SearchSet()
    for word in by_word:
        matcher.Add(f"(?i){re2.escape(word)}")
    matcher.Compile()
    return matcher, list(by_word.values())


def shaped(data: bytes) -> Iterator[Span]:
    """Where secrets of a known shape are."""
    for shape in SHAPES:
        yield from shape.spans(data)
    matcher, by_word = _keywords()
    found = {rule.pattern: rule for index in matcher.Match(data) or () for rule in by_word[index]}
    for rule in found.values():
        yield from rule.spans(data)


_BLANK = r"(?:\s|\\[nrt])"
COMMANDS_MAYBE = (
    rf"(?:curl|redis-cli|mongo[a-z]*|smbclient|rpcclient|sshpass){_BLANK}+[^\s]",
    rf"(?:mysql[a-z]*|mariadb[a-z-]*|ldap[a-z]+|sqlcmd|bcp|login)(?:{_BLANK}|\\*[\"',])+-",
    rf"zip{_BLANK}[^\n]{{0,40}}?-P|7z[a-z]?{_BLANK}[^\n]{{0,40}}?-p|https?{_BLANK}[^\n]{{0,40}}?-(?:a|-auth)[\s=]|gh{_BLANK}+secret{_BLANK}|ssh-keygen{_BLANK}|--user(?:{_BLANK}|=)+[\"'\\]*[A-Za-z][\w.-]*:|--password-stdin|--with-token|sudo{_BLANK}+-S|chpasswd|auth\s*=\s*\(|\.login\(|BasicAuth\(|hmac\.new\(|jwt\.[a-z]+code\(",
    rf"-(?:pass|passin|passout|k){_BLANK}+[\"'\\]*pass:",
    rf"\blogin{_BLANK}+[A-Za-z0-9_.-]{{12}}",
    rf"(?i:identified{_BLANK}+(?:with|by))",
    rf"(?i:{_BLANK}password{_BLANK}+(?:\\*'|[^\s\\]*[0-9]))",
    rf"(?i:(?:requirepass|masterauth){_BLANK})",
    r"[a-z0-9.*-]:(?:[0-9]{4,5}|\*):[a-zA-Z*][^\s:/]*:[a-zA-Z][^\s:/]*:[^\s:/][^\s:]{2}",
    rf"(?i:(?:username|user|login){_BLANK}*/{_BLANK}*pass(?:word)?(?:{_BLANK}|[:=])*\S+{_BLANK}*/)",
)
"""Of these one matches JSON wherever a command does."""
COVERED = frozenset(
    (
        "test_",
        "live_",
        "api-",
        "pat.",
        "sat.",
        "ext_",
        "sc_",
        "asia",
        "acca",
        "abia",
        "a3t",
        "ey",
        "sk",
        "sk-",
        "s.",
        "pat",
    )
)
"""Keywords of rules that are too short to search for; the shapes here find their tokens."""


@cache
def maybe() -> tuple[str, ...]:
    """Patterns of which one matches JSON wherever a shape matches a text in it; escapes of JSON are allowed for.

    Each is an automaton of its own: the states of all in one would be the products of their states.
    """
    heads, vendors = (
        "|".join(_escaped(rule for rule in rules() if rule.assigned == assigned)) for assigned in (False, True)
    )
    between = r"(?:[\s\\\"'\x60=]|\\[nrt])*"
    tokens = (
        _loose(f"{BEFORE}(?:{either((*CERTAIN, *PREFIXED))})"),
        rf"{BEFORE}(?i:{heads})[A-Za-z0-9_.=+/~-]{{6}}",
        *(_loose(pattern.replace(r"\b", "")) for pattern in WEBHOOKS),
    )
    signs = (
        MARKS,
        r"PRIVATE KEY|PuTTY-User-Key-File",
        rf"(?i:bearer|basic|apikey|digest)(?:\s|\\[nrtbf]|%20|\+)+[\\\"']*(?:[A-Za-z._~+/=-]*[0-9]|{TOKEN}{{24}})",
        r"[A-Za-z0-9+.-]:(?:\\*/){2}(?:[^/\s:@\"'<>?#]*:[^\s\"'<>]+|[A-Za-z0-9_.~-]{16,})@",
        r"(?i)%3a%2f%2f\S*%40",
    )
    assigned = rf"(?i:{vendors})[\w.-]*[ \t]{{0,2}}[\w.-]*{between}(?:=|>|:|\|\||,){between}[A-Za-z0-9_=./+:-]{{10}}"
    return (either(tokens), either(signs), either((assigned, *COMMANDS_MAYBE)))


def _escaped(rules: Iterable[Shape]) -> list[str]:
    return sorted({re2.escape(word) for rule in rules for word in rule.keywords - COVERED})


def _loose(pattern: str) -> str:
    """The pattern with lower and open counts, for which the automaton needs fewer states."""

    def count(match: Any) -> str:
        return "{8,}" if int(match.group(1)) >= 8 else str(match.group())

    return re.sub(r"\{(\d+)(,\d*)?\}", count, pattern)
