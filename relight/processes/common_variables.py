"""Environment variables that any program may need and that are no secret of Relight: both the parts of the embedded
stack and agents get them.
"""

from __future__ import annotations

from typing import Final

PROXIES: Final = frozenset(
    name for lower in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") for name in (lower, lower.upper())
)
CERTIFICATES: Final = frozenset(
    {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"}
)
HUBS: Final = frozenset(
    {"HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT", "HF_HUB_DISABLE_XET"}
    | {"TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"}
)
"""Of the Hugging Face hub: its address, and whether and for how long it is asked; no token."""
CACHES: Final = {
    "HF_HOME": ".cache/huggingface",
    "TORCH_HOME": ".cache/torch",
    "NLTK_DATA": "nltk_data",
    "MPLCONFIGDIR": ".config/matplotlib",
    "PLAYWRIGHT_BROWSERS_PATH": ".cache/ms-playwright",
}
"""Variables of well-known caches, and where these are in a user's home."""
COMMON: Final = (
    PROXIES
    | CERTIFICATES
    | HUBS
    | {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH"}
)
PREFIXES: Final = ("LC_", "PYTHON")
