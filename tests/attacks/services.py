"""Attacks of strangers on the services: which tests play each, and which boundary refuses it.

They are played once with everything in its place, and once each without its boundary, where it must succeed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.attacks.without import BOUNDARIES

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 240
"""After this time a run of pytest is ended."""
WITHOUT_SECONDS = 10
"""How long an attack may take without its boundary: what it asks for may then never come."""
SERVICE, CLOSED = "tests/integration/store/test_service.py", "tests/integration/operations/test_closed.py"
HEADS, BUDGETS = "tests/unit/transport/test_request_limits.py", "tests/unit/store/test_request_budgets.py"
CALLS, REQUESTS = "tests/unit/llm_proxy/test_limits.py", "tests/unit/llm_proxy/test_requests.py"
TOKENS, ROLES = "tests/integration/operations/test_access_tokens.py", "tests/integration/stack/test_postgres_roles.py"
OF_A_RUN = "tests/integration/operations/test_run_tokens.py"
UPSTREAMS, KEYS = "tests/unit/llm_proxy/test_upstreams.py", "tests/unit/gpu_worker/test_host_keys.py"
AGENTS, HANDLER = "tests/integration/otlp/test_agents.py", "tests/unit/llm_proxy/test_call_handler.py"


@dataclass(frozen=True)
class Attack:
    """One attack, the test that plays it, and what refuses it."""

    name: str
    file: str
    test: str
    boundary: str
    """One of `BOUNDARIES`, or one that can't be taken away alone."""

    @property
    def node(self) -> str:
        """The test as pytest names it, without parameters."""
        return f"{self.file}::{self.test}"


ATTACKS = (
    Attack(
        "headers without an end", HEADS, "test_headers_that_never_end_are_refused_and_not_kept", "head and body limits"
    ),
    Attack(
        "headers of 64 KB at once",
        HEADS,
        "test_long_headers_that_are_complete_at_once_are_refused_too",
        "head and body limits",
    ),
    Attack(
        "half a request, kept open",
        HEADS,
        "test_half_a_head_is_given_up_and_a_connection_that_says_nothing_is_closed",
        "head and body limits",
    ),
    Attack(
        "a body that stalls",
        HEADS,
        "test_a_body_that_stalls_ends_its_connection_and_one_that_goes_on_does_not",
        "head and body limits",
    ),
    Attack(
        "2,100 half requests beside /healthz",
        HEADS,
        "test_a_service_answers_beside_thousands_of_half_open_requests",
        "no limit on connections",
    ),
    Attack(
        "idle connections with one attempt's token",
        BUDGETS,
        "test_requests_that_sent_nothing_yet_take_no_bytes_and_are_counted_by_attempt",
        "store budgets",
    ),
    Attack(
        "the store filled by one attempt",
        BUDGETS,
        "test_an_attempts_bodies_take_no_more_than_its_own_part",
        "store budgets",
    ),
    Attack(
        "the store filled by all agents",
        BUDGETS,
        "test_all_agents_together_leave_memory_for_the_platform",
        "store budgets",
    ),
    Attack(
        "a body larger than an attempt's part",
        BUDGETS,
        "test_a_body_of_an_agent_is_refused_that_is_larger_than_its_attempts_part",
        "store budgets",
    ),
    Attack(
        "a long body before the key is known",
        CALLS,
        "test_a_wrong_key_is_refused_before_the_body_comes",
        "key before body",
    ),
    Attack(
        "the gateway filled by one attempt",
        CALLS,
        "test_requests_are_held_within_a_limit_for_each_attempt_and_for_all",
        "gateway budgets",
    ),
    Attack(
        "calls without bound at once",
        CALLS,
        "test_an_attempt_has_a_limit_on_its_calls_at_once_and_others_are_served_beside_it",
        "gateway budgets",
    ),
    Attack(
        "129 choices, 21 logprobs",
        REQUESTS,
        "test_more_choices_and_logprobs_than_openais_api_gives_are_refused_by_name",
        "request ranges",
    ),
    Attack(
        "21 logprobs of a completion",
        REQUESTS,
        "test_more_logprobs_of_a_completion_than_the_api_gives_are_refused",
        "request ranges",
    ),
    Attack(
        "a body nested 200 deep",
        REQUESTS,
        "test_a_body_that_is_nested_too_deeply_to_be_recorded_is_refused",
        "nesting depth",
    ),
    Attack(
        "an idempotency key of 201 characters",
        SERVICE,
        "test_a_key_that_is_too_long_to_be_kept_is_refused_and_not_cut",
        "key length",
    ),
    Attack(
        "an idempotency key of another request",
        "tests/integration/store/contract/test_queue.py",
        "test_the_key_of_another_request_is_refused",
        "request hashes",
    ),
    Attack(
        "an idempotency key of other resources",
        SERVICE,
        "test_resources_are_added_once_by_a_key_which_takes_no_others",
        "request hashes",
    ),
    Attack(
        "one key for many resources at once",
        "tests/integration/store/contract/test_queue.py",
        "test_of_different_resources_that_one_key_brings_at_once_one_are_added",
        "request hashes",
    ),
    Attack("two Authorization headers, store", SERVICE, "test_a_request_with_two_tokens_is_refused", "access"),
    Attack("two Authorization headers, gateway", CALLS, "test_a_call_with_two_keys_is_refused", "one authorization"),
    Attack(
        "each route of the store without a token",
        CLOSED,
        "test_every_route_of_the_store_service_refuses_requests_without_a_token",
        "access",
    ),
    Attack(
        "each route of the gateway without a token",
        CLOSED,
        "test_every_route_of_the_gateway_refuses_requests_without_a_token",
        "attempts' tokens",
    ),
    Attack("the admin's token at a model", CLOSED, "test_the_admins_token_calls_no_model", "attempts' tokens"),
    Attack("spans of another attempt", CLOSED, "test_an_attempts_token_writes_no_spans_of_another", "attempts' tokens"),
    Attack("an attempt's token on other routes", AGENTS, "test_an_agents_token_is_good_for_nothing_else", "access"),
    Attack("a viewer's token that writes", TOKENS, "test_a_viewer_reads_everything_and_writes_nothing", "roles"),
    Attack("a runner's token that commands", TOKENS, "test_a_runner_writes_attempts_and_gives_no_commands", "roles"),
    Attack(
        "a runner's token that forges model calls",
        TOKENS,
        "test_a_runner_records_no_model_calls_and_a_gateway_ends_no_attempts",
        "roles",
    ),
    Attack(
        "a runner's token of other agents",
        TOKENS,
        "test_a_runners_token_of_some_agents_is_good_for_their_attempts_alone",
        "token scopes",
    ),
    Attack("a token of another run", OF_A_RUN, "test_a_token_of_a_run_permits_nothing_of_another_run", "token scopes"),
    Attack(
        "work for other agents' runners",
        OF_A_RUN,
        "test_a_token_of_a_run_enqueues_for_the_queues_of_its_runs_agent_alone",
        "token scopes",
    ),
    Attack(
        "an expired or revoked token", TOKENS, "test_an_expired_token_is_refused_everywhere_with_the_reason", "access"
    ),
    Attack(
        "a dead attempt's token at the store",
        AGENTS,
        "test_a_token_ends_soon_after_its_attempt_where_the_platform_ended_that",
        "attempts' tokens",
    ),
    Attack(
        "a dead attempt's token at the gateway",
        HANDLER,
        "test_an_attempt_that_ended_is_soon_refused_before_anything_is_sampled",
        "ended attempts",
    ),
    Attack(
        "a provider at a link-local address",
        UPSTREAMS,
        "test_a_provider_at_a_link_local_address_is_not_called",
        "link-local addresses",
    ),
    Attack(
        "a provider that is the platform itself",
        UPSTREAMS,
        "test_a_provider_is_not_called_that_is_a_service_of_the_platform_itself_unless_its_host_is_allowed",
        "provider addresses",
    ),
    Attack(
        "a provider that quotes its key",
        UPSTREAMS,
        "test_a_key_that_a_provider_quotes_is_removed_however_it_is_escaped",
        "key removal",
    ),
    Attack(
        "the token on a screen, in a pipe or a log",
        "tests/unit/cli/test_up.py",
        "test_the_stores_url_is_shown_without_its_token_in_a_pipe_and_at_a_terminal",
        "no token in output",
    ),
    Attack("Postgres without its password", ROLES, "test_no_role_connects_without_the_password", "Postgres: scram"),
    Attack("COPY FROM PROGRAM and the like", ROLES, "test_the_role_of_the_services_is_refused", "Postgres: roles"),
    Attack(
        "COPY FROM PROGRAM by the owner",
        ROLES,
        "test_the_owner_of_the_schema_runs_no_code_on_the_host_either",
        "Postgres: roles",
    ),
    Attack(
        "tables dropped as partitions",
        ROLES,
        "test_the_role_of_the_services_drops_no_table_but_days",
        "Postgres: roles",
    ),
    Attack(
        "a run file that sets vLLM's code",
        KEYS,
        "test_a_run_file_sets_no_argument_of_vllm_that_reaches_the_gpu_host",
        "host keys",
    ),
    Attack(
        "a run file that sets verl's code",
        KEYS,
        "test_a_run_file_sets_no_key_of_verl_that_reaches_the_gpu_host",
        "host keys",
    ),
)


def played() -> list[dict[str, Any]]:
    """A row for each attack: what came of it, and without its boundary."""
    removable = [attack for attack in ATTACKS if attack.boundary in BOUNDARIES]
    options = ("-p", "tests.attacks.without", f"--timeout={WITHOUT_SECONDS}", "-o", "timeout_func_only=true")
    with ThreadPoolExecutor() as executor:
        whole, without = executor.submit(_run, ATTACKS), executor.submit(_run, removable, *options)
        return [_row(attack, whole.result(), without.result()) for attack in ATTACKS]


def lines(made: Iterable[Mapping[str, Any]]) -> list[str]:
    """The rows as text."""
    shown = [f"{'attack on a service':44} {'tries':>5} {'held':5} {'refused by':24} without that"]
    for row in made:
        held, without = "held" if row["held"] else "NOT", row["succeeds_without"]
        outcome = "-" if without is None else f"{without} of {row['tries']} succeed"
        shown.append(f"{row['attack']:44} {row['tries']:5} {held:5} {row['refused_by']:24} {outcome}")
    return shown


def _row(attack: Attack, whole: Mapping[str, Counter[str]], without: Mapping[str, Counter[str]]) -> dict[str, Any]:
    """Held only if each try was refused, and by the boundary that is said: without it some succeed."""
    ended = whole.get(attack.node, Counter())
    succeed = without[attack.node]["failure"] if attack.node in without else None
    held = ended["passed"] > 0 and not ended["failure"] + ended["error"] and succeed != 0
    row = {"attack": attack.name, "held": held, "tries": ended.total(), "refused_by": attack.boundary}
    return row | {"succeeds_without": succeed, "test": attack.node}


def _run(attacks: Iterable[Attack], *options: str) -> dict[str, Counter[str]]:
    """How the tests of attacks ended, counted over their parameters."""
    with tempfile.TemporaryDirectory(prefix="relight-attacks-") as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        command += ["-o", "junit_family=xunit1", f"--junitxml={report}", *(attack.node for attack in attacks)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
        if not report.exists():
            raise SystemExit(f"pytest made no report:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return _ended(ET.parse(report))


def _ended(report: Any) -> dict[str, Counter[str]]:
    ended: dict[str, Counter[str]] = {}
    for case in report.iter("testcase"):
        node = f"{case.get('file')}::{case.get('name').partition('[')[0]}"
        state = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
        ended.setdefault(node, Counter())[state] += 1
    return ended
