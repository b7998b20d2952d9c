"""Model providers that agents reach through the gateway, by base URL and key.

Only the key's name is written anywhere: the value is read from the gateway's own environment. The name must end in
`_API_KEY`, so that no run file can send the gateway's other secrets to an address of its choice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from relight.errors import ConfigError
from relight.types.names import POLICY

KEY_NAME = re.compile(r"[A-Z][A-Z0-9_]*_API_KEY")
OUR_OWN = ("RELIGHT_", "TEMPORAL_")


class Upstream(BaseModel):
    """A provider whose API is OpenAI's. Its models are called by name, and nothing of them is trained on."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")
    """Calls are recorded under `upstream:<name>`."""
    base_url: str
    """What comes before `/chat/completions`: `https://api.openai.com/v1`."""
    api_key_env: str | None = None
    """Environment variable of the gateway that holds the key; None: no key is sent."""
    models: list[str] = Field(min_length=1)
    """The models that this provider serves. If several have one, the others are used when one does not answer."""

    @field_validator("base_url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("an address is needed, as in https://api.openai.com/v1")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("no password, query or fragment; name the key's variable in `api_key_env`")
        return value.rstrip("/")

    @field_validator("api_key_env")
    @classmethod
    def _check_key(cls, value: str | None) -> str | None:
        if value is not None and (not KEY_NAME.fullmatch(value) or value.startswith(OUR_OWN)):
            raise ValueError("name a variable that ends in _API_KEY, and is none of Relight's or Temporal's own")
        return value

    @model_validator(mode="after")
    def _check_models(self) -> Self:
        if POLICY in self.models:
            raise ValueError(f"`models` can't hold {POLICY!r}: that is the model in training")
        return self


def check_names(upstreams: list[Upstream]) -> list[Upstream]:
    """Refuse two of a name: generations are recorded under it."""
    names = [upstream.name for upstream in upstreams]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two upstreams are called {name!r}")
    return upstreams


def check_models(models: Mapping[str, str], upstreams: Sequence[Upstream]) -> None:
    """Refuse further names of models (key: name, value: model) of which one would hide another model."""
    providers = {model: upstream.name for upstream in upstreams for model in upstream.models}
    for name, model in models.items():
        if name == POLICY:
            raise ValueError(f"`models` can't give {POLICY!r} another meaning: that is the model in training")
        if name in providers:
            raise ValueError(
                f"`models.{name}` would hide the model of that name of provider {providers[name]!r}; rename one"
            )
        if model in models:
            raise ValueError(f"`models.{name}` names {model!r}, which `models` replaces itself; name the model")


def load_upstreams(path: Path) -> list[Upstream]:
    """The providers in a JSON file: a list of them.

    Raises:
        ConfigError: it can't be read, or what is in it is wrong.
    """
    try:
        content: Any = orjson.loads(path.read_bytes())
        return check_names(TypeAdapter(list[Upstream]).validate_python(content))
    except OSError as error:
        raise ConfigError(f"gateway_upstreams: {path}: {error.strerror}") from error
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, fault["loc"]))
        raise ConfigError(f"gateway_upstreams: {path}: {key}: {fault['msg']}") from error
    except ValueError as error:
        raise ConfigError(f"gateway_upstreams: {path}: {error}") from error
