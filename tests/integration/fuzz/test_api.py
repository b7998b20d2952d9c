"""The API is asked what its OpenAPI schema allows, and what it doesn't, with a fixed seed.

Whatever comes: no 5xx but 503, no traceback in an answer, and the next good request works.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from tests.integration.fuzz.serving import Served, served
from tests.support.small_run import RUN
from tests.support.store_service import TOKEN

HEADERS = {"Authorization": f"Bearer {TOKEN}"}
TRACEBACK = re.compile(r'Traceback \(most recent|File "[^"]+", line \d+')
ENDLESS = re.compile(r"/events|/wait")
"""Routes that may take as long as the caller says, or for ever."""
PATIENCE_SECONDS = 15.0
MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Generator[Served]:
    with served(database_url, tmp_path) as service:
        yield service


class Fuzzer:
    """Asks a service, and keeps what it should not have answered."""

    def __init__(self, service: Served) -> None:
        self.service = service
        self.session = requests.Session()
        self.session.headers.update(HEADERS)
        self.faults: list[str] = []
        self.asked: dict[str, int] = {}
        schema = self.session.get(f"{service.url}/openapi.json", timeout=PATIENCE_SECONDS).json()
        self.schema = schemathesis.openapi.from_dict(schema)

    def fuzz(self, mode: GenerationMode, examples: int) -> None:
        """So many requests to each operation."""
        for found in self.schema.get_all_operations():
            operation: Any = found.ok()  # pyright: ignore[reportAttributeAccessIssue]  # an Err would raise, as it should
            self._ask_often(operation, operation.as_strategy(generation_mode=mode), examples)
            assert self.is_well(), f"after {operation.label}: {self.faults}"

    def _ask_often(self, operation: Any, cases: Any, examples: int) -> None:
        @settings(
            max_examples=examples,
            phases=[Phase.generate],
            suppress_health_check=list[Any](HealthCheck),
        )
        @given(case=cases, data=st.data())
        def ask(case: Any, data: st.DataObject) -> None:
            self._use_known(case, data)
            self._ask(operation, case)

        with suppress(Unsatisfiable):  # an operation without parameters allows everything
            ask()

    def _use_known(self, case: Any, data: st.DataObject) -> None:
        """Often name something that exists: else nearly every answer is 404."""
        for values in (case.path_parameters, case.query, case.body):
            if not isinstance(values, dict):
                continue
            for name in values.keys() & self.service.known.keys():
                if data.draw(st.integers(0, 2)):
                    values[name] = data.draw(st.sampled_from(self.service.known[name]))
            if isinstance(values.get("timeout"), int | float):
                values["timeout"] = 0.01

    def _ask(self, operation: Any, case: Any) -> None:
        self.asked[operation.label] = self.asked.get(operation.label, 0) + 1
        patience = 0.5 if ENDLESS.search(operation.path) else PATIENCE_SECONDS
        try:
            answer = case.call(base_url=self.service.url, session=self.session, timeout=patience)
        except requests.Timeout:
            if not ENDLESS.search(operation.path):
                self._fault(operation, case, "no answer")
            return
        text = answer.content.decode(errors="replace")
        if answer.status_code >= 500 and answer.status_code not in (501, 503):
            self._fault(operation, case, f"{answer.status_code} {text[:200]}")
        elif TRACEBACK.search(text):
            self._fault(operation, case, f"a traceback: {text[:200]}")

    def _fault(self, operation: Any, case: Any, what: str) -> None:
        self.faults.append(f"{operation.label}: {what}\n  {case.as_curl_command()[:600]}")

    def is_well(self) -> bool:
        """Whether a good request works."""
        url = f"{self.service.url}/v1/relight/runs/{RUN}"
        return self.session.get(url, timeout=PATIENCE_SECONDS).status_code == 200


@pytest.mark.parametrize("mode", MODES, ids=["what the schema allows", "what it does not"])
def test_no_request_breaks_the_service(service: Served, mode: GenerationMode) -> None:
    fuzzer = Fuzzer(service)
    fuzzer.fuzz(mode, examples=4)
    assert fuzzer.faults == []
    assert len(fuzzer.asked) > 20


RAW_BODIES = {
    "nothing": b"",
    "half of an object": b"{",
    "null": b"null",
    "a list": b"[]",
    "text": b'"x"',
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"a":' * 100_000,
    "NUL": b'{"rollout_id": "\\u0000", "input": "\\u0000", "items": ["\\u0000"]}',
    "half a surrogate": b'{"rollout_id": "\\ud800", "input": {"\\ud800": 1}}',
    "no UTF-8": b'{"rollout_id": "\xff\xfe"}',
    "NaN": b'{"rollout_id": NaN, "fence": NaN, "reward": NaN, "input": Infinity}',
    "a number without end": b'{"fence": ' + b"9" * 5000 + b"}",
    "a float without end": b'{"fence": 1e999, "reward": 1e999, "limit": 1e999}',
    "many keys": b"{" + b",".join(b'"k%d": 1' % number for number in range(2_000)) + b"}",
}


def test_no_body_breaks_the_service_whatever_its_bytes(service: Served) -> None:
    fuzzer = Fuzzer(service)
    asked = 0
    for found in fuzzer.schema.get_all_operations():
        operation = found.ok()  # pyright: ignore[reportAttributeAccessIssue]
        if operation.method.upper() == "GET":
            continue
        path = re.sub(r"\{(\w+)\}", lambda match: service.known.get(match[1], ["x"])[0], operation.path)
        for what, body in RAW_BODIES.items():
            for kind in ("application/json", "application/x-protobuf"):
                answer = fuzzer.session.request(
                    operation.method.upper(),
                    service.url + path,
                    data=body,
                    headers={"Content-Type": kind},
                    timeout=PATIENCE_SECONDS,
                )
                asked += 1
                assert answer.status_code < 500 or answer.status_code in (501, 503), (
                    operation.label,
                    what,
                    answer.text,
                )
                assert not TRACEBACK.search(answer.text)
    assert asked > 100
    assert fuzzer.is_well()


def test_a_span_without_a_status_can_be_read(service: Served) -> None:
    fuzzer = Fuzzer(service)
    rollout_id, attempt_id = "outside-1", service.known["attempt_id"][0]
    span = {"trace_id": "t", "span_id": "s", "name": "n", "start_time": 1.0, "status": "fine"}
    body = {"rollout_id": rollout_id, "attempt_id": attempt_id, "spans": [span]}
    answer = fuzzer.session.post(f"{service.url}/v1/relight/attempts/spans", json=body, timeout=PATIENCE_SECONDS)
    assert answer.json() == {"stored": 1}
    url = f"{service.url}/v1/agl/spans"
    found = fuzzer.session.get(url, params={"rollout_id": rollout_id}, timeout=PATIENCE_SECONDS).json()
    assert [item["status"]["status_code"] for item in found["items"]] == ["UNSET"]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES, ids=["what the schema allows", "what it does not"])
def test_no_request_of_many_breaks_the_service(service: Served, mode: GenerationMode) -> None:
    fuzzer = Fuzzer(service)
    fuzzer.fuzz(mode, examples=100)
    assert fuzzer.faults == []
