"""The relay between agents and the gateway: what it passes on, and what it takes for a call that got lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import aiohttp
import pytest

from relight.runner.agent_call import AgentCall
from relight.runner.gateway_relay import CallLog, Relay
from relight.types.resources import LLM, PromptTemplate, ProxyLLM
from relight.types.rollout import RolloutConfig
from relight.types.wire import OpenedAttempt

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Server:
    """Talks as a test wants it to, and may be asked whether it is there."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.there = True
        self.requests: list[bytes] = []
        self.asked = asyncio.Event()
        self.url = ""

    async def reachable(self) -> bool:
        return self.there

    async def start(self, port: int | None = 0) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        self._listener.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await self.talk(reader, writer)
        writer.close()

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """The next request, head and body."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), b":0")
        self.requests.append(head + await reader.readexactly(int(length.partition(b":")[2])))
        self.asked.set()
        return self.requests[-1]


@asynccontextmanager
async def serving(talk: Callable[[Server], Talk]) -> AsyncGenerator[tuple[Server, Relay]]:
    server = Server(lambda reader, writer: talk(server)(reader, writer))
    await server.start()
    relay = Relay(server.reachable)
    try:
        yield server, relay
    finally:
        await relay.close()
        server.stop()


def opened(server: Server, attempt: str = "at-1") -> OpenedAttempt:
    return OpenedAttempt(
        rollout_id="r1",
        attempt_id=attempt,
        sequence_id=1,
        fence=1,
        token="k",
        base_url=f"{server.url}/rollout/r1/attempt/{attempt}/v1",
        config=RolloutConfig(),
    )


async def ask(session: aiohttp.ClientSession, log: CallLog, body: bytes = b'{"a": 1}') -> bytes:
    async with session.post(f"{log.base_url}/chat/completions", data=body) as answer:
        return await answer.read()


async def connected(log: CallLog) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = urlsplit(log.base_url)
    return await asyncio.open_connection(url.hostname, url.port)


def head_of(log: CallLog, length: int) -> bytes:
    path = urlsplit(log.base_url).path
    return f"POST {path}/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n".encode()


def answers(server: Server) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await server.request(reader)
            writer.write(ANSWER)

    return talk


def answers_once_a_connection(server: Server) -> Talk:
    """Then it closes the connection, as an idle one."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        writer.write(ANSWER)
        await writer.drain()

    return talk


def cuts_the_first(server: Server) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        if len(server.requests) > 1:
            writer.write(ANSWER)

    return talk


def never_answers(server: Server) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        await reader.read()

    return talk


async def test_requests_and_answers_pass_unchanged_except_for_the_host() -> None:
    async with serving(answers) as (server, relay), relay.followed(opened(server)) as log:
        assert log.base_url.startswith("http://127.0.0.1:")
        assert log.base_url.endswith("/rollout/r1/attempt/at-1/v1")
        assert not log.base_url.startswith(server.url)
        body = b'{"text": "\r\nhost: mine"}' + b"x" * 3_000_000
        async with aiohttp.ClientSession() as session:
            assert [await ask(session, log, body) for _ in range(2)] == [b"{}"] * 2
        assert await log.lost_call() is None
    for request in server.requests:
        head, _, sent = request.partition(b"\r\n\r\n")
        assert sent == body
        assert f"\r\nHost: {server.url.removeprefix('http://')}\r\n".encode() in head


async def test_a_stream_passes_piece_by_piece() -> None:
    read = asyncio.Event()

    def streams(server: Server) -> Talk:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
            await read.wait()
            writer.write(b"3\r\ntwo\r\n0\r\n\r\n")
            await reader.read()

        return talk

    async with serving(streams) as (server, relay), relay.followed(opened(server)) as log, asyncio.timeout(20):
        async with aiohttp.ClientSession() as session, session.post(f"{log.base_url}/chat/completions") as answer:
            assert await answer.content.readexactly(3) == b"one"
            read.set()
            assert await answer.content.read() == b"two"
        assert await log.lost_call() is None


async def test_a_connection_that_the_gateway_closes_between_two_calls_is_no_lost_call() -> None:
    async with serving(answers_once_a_connection) as (server, relay), relay.followed(opened(server)) as log:
        reader, writer = await connected(log)
        async with asyncio.timeout(20):
            for _ in range(3):
                writer.write(head_of(log, 2) + b"{}")
                assert await reader.readexactly(len(ANSWER)) == ANSWER
                await asyncio.sleep(0.05)
        writer.close()
        assert await log.lost_call() is None


async def test_a_call_on_a_connection_from_before_an_outage_of_the_gateway_is_lost() -> None:
    async with serving(answers_once_a_connection) as (server, relay), relay.followed(opened(server)) as log:
        reader, writer = await connected(log)
        async with asyncio.timeout(20):
            writer.write(head_of(log, 2) + b"{}")
            assert await reader.readexactly(len(ANSWER)) == ANSWER
            server.stop()
            await asyncio.sleep(0.05)
            writer.write(head_of(log, 2) + b"{}")
            assert await reader.read() == b""
        writer.close()
        assert await log.lost_call() == "was refused"


async def test_of_equal_calls_that_were_cut_at_once_each_must_be_answered() -> None:
    def cuts_the_first_two(server: Server) -> Talk:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            while len(server.requests) < 2:  # noqa: ASYNC110  # until both are under way
                await asyncio.sleep(0.01)
            if len(server.requests) > 2:
                writer.write(ANSWER)

        return talk

    async with serving(cuts_the_first_two) as (server, relay), relay.followed(opened(server)) as log:
        async with aiohttp.ClientSession() as session:
            ended = await asyncio.gather(ask(session, log), ask(session, log), return_exceptions=True)
            assert all(isinstance(one, aiohttp.ClientError) for one in ended)
            assert await ask(session, log) == b"{}"
            assert await log.lost_call() == "was cut"
            assert await ask(session, log) == b"{}"
        assert await log.lost_call() is None


async def test_a_call_that_is_answered_after_several_losses_is_no_lost_call() -> None:
    def cuts_the_first_three(server: Server) -> Talk:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            if len(server.requests) > 3:
                writer.write(ANSWER)

        return talk

    async with serving(cuts_the_first_three) as (server, relay), relay.followed(opened(server)) as log:
        async with aiohttp.ClientSession() as session, asyncio.timeout(20):
            for _ in range(3):
                with pytest.raises(aiohttp.ClientError):
                    await ask(session, log)
            assert await ask(session, log) == b"{}"
        assert await log.lost_call() is None


async def test_spans_that_are_lost_on_the_way_are_no_lost_model_call() -> None:
    async with serving(cuts_the_first) as (server, relay), relay.followed(opened(server)) as log:
        async with aiohttp.ClientSession() as session, asyncio.timeout(20):
            with pytest.raises(aiohttp.ClientError):
                await session.post(f"{log.base_url.removesuffix('/v1')}/v1/traces", data=b"spans")
        assert await log.lost_call() is None


async def test_a_body_held_for_a_continue_is_sent_when_the_gateway_is_down_and_its_call_is_recognized_again() -> None:
    async with serving(answers) as (server, relay), asyncio.timeout(20):
        url = server.url
        server.stop()
        async with relay.followed(opened(server)) as log:
            reader, writer = await connected(log)
            writer.write(head_of(log, 2).replace(b"host: a", b"host: a\r\nexpect: 100-continue"))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
            writer.write(b"{}")
            assert await reader.read() == b""
            await server.start(urlsplit(url).port)
            async with aiohttp.ClientSession() as session:
                await ask(session, log, b"{}")
            assert await log.lost_call() is None


@pytest.mark.parametrize(
    ("head", "fate"),
    [
        (b"HTTP/1.1 502 Bad Gateway\r\n", "was answered 502"),
        (b"HTTP/1.1 503 Away\r\n", "was answered 503"),
        (b"HTTP/1.1 503 Away\r\nX-Relight-Recorded: true\r\n", None),
        (b"HTTP/1.1 500 Oh\r\n", None),
        (b"HTTP/1.1 429 Later\r\n", None),
    ],
)
async def test_a_proxys_5xx_answer_counts_as_a_lost_call(head: bytes, fate: str | None) -> None:
    def says_so(server: Server) -> Talk:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(head + b"content-length: 2\r\n\r\n{}")

        return talk

    async with serving(says_so) as (server, relay), relay.followed(opened(server)) as log:
        async with aiohttp.ClientSession() as session:
            assert await ask(session, log) == b"{}"
        assert await log.lost_call() == fate


async def test_an_answer_that_ends_with_its_connection_is_complete() -> None:
    def ends(server: Server) -> Talk:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(b"HTTP/1.0 200 OK\r\n\r\nsome words")

        return talk

    async with serving(ends) as (server, relay), relay.followed(opened(server)) as log:
        async with aiohttp.ClientSession() as session, asyncio.timeout(20):
            assert await ask(session, log) == b"some words"
        assert await log.lost_call() is None


@pytest.mark.parametrize(("again", "fate"), [(b'{"a": 1}', None), (b'{"a": 2}', "was cut")])
async def test_a_call_that_was_cut_is_lost_until_the_same_one_is_answered(again: bytes, fate: str | None) -> None:
    async with serving(cuts_the_first) as (server, relay), relay.followed(opened(server)) as log:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await ask(session, log, b'{"a": 1}')
            assert await ask(session, log, again) == b"{}"
        assert await log.lost_call() == fate


async def test_a_call_that_is_cut_in_the_middle_of_its_request_is_recognized_again() -> None:
    def cuts_at_the_head(server: Server) -> Talk:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            server.requests.append(head)
            if len(server.requests) > 1:
                await reader.readexactly(8)
                writer.write(ANSWER)

        return talk

    ended = b""
    async with serving(cuts_at_the_head) as (server, relay), relay.followed(opened(server)) as log:
        for _ in range(2):
            reader, writer = await connected(log)
            writer.write(head_of(log, 8))
            await asyncio.sleep(0.1)
            writer.write(b'{"a": 1}')
            ended = await reader.read(len(ANSWER))
            writer.close()
        assert ended == ANSWER
        assert await log.lost_call() is None


async def test_a_refused_call_is_lost() -> None:
    async with serving(answers) as (server, relay):
        away = opened(server).model_copy(update={"base_url": "http://127.0.0.1:9/rollout/r1/attempt/at-1/v1"})
        async with relay.followed(away) as log, aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await ask(session, log)
            assert await log.lost_call() == "was refused"


@pytest.mark.parametrize("there", [True, False])
async def test_a_call_that_is_open_at_the_end_is_lost_if_the_gateway_is_down(there: bool) -> None:
    async with serving(never_answers) as (server, relay), relay.followed(opened(server)) as log:
        _, writer = await connected(log)
        writer.write(head_of(log, 2) + b"{}")
        async with asyncio.timeout(20):
            await server.asked.wait()
        server.there = there
        assert await log.lost_call() == (None if there else "got no answer")
        writer.close()


async def test_a_call_that_was_cut_is_lost_though_its_agent_did_not_wait_for_the_answer_to_its_repetition() -> None:
    def cuts_and_sleeps(server: Server) -> Talk:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            if len(server.requests) > 1:
                await reader.read()

        return talk

    async with serving(cuts_and_sleeps) as (server, relay), relay.followed(opened(server)) as log:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await ask(session, log)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ask(session, log), 0.1)
        await asyncio.sleep(0.05)
        assert await log.lost_call() == "was cut"


async def test_calls_are_attributed_to_the_attempt_in_their_path() -> None:
    async with (
        serving(cuts_the_first) as (server, relay),
        relay.followed(opened(server)) as failing,
        relay.followed(opened(server, "at-2")) as other,
        aiohttp.ClientSession() as session,
    ):
        with pytest.raises(aiohttp.ClientError):
            await ask(session, failing)
        assert await ask(session, other) == b"{}"
        assert (await failing.lost_call(), await other.lost_call()) == ("was cut", None)


@pytest.mark.parametrize("said", [b"hello\r\n\r\n!", b"\x16\x03\x01 as TLS begins!"])
async def test_traffic_that_is_not_http_passes_and_counts_as_no_call(said: bytes) -> None:
    def echoes(server: Server) -> Talk:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readuntil(b"!"))

        return talk

    async with serving(echoes) as (server, relay), relay.followed(opened(server)) as log, asyncio.timeout(20):
        reader, writer = await connected(log)
        writer.write(said)
        assert await reader.read(100) == said
        assert await log.lost_call() is None
        writer.close()


async def test_an_answer_before_the_end_of_its_request_counts() -> None:
    def refuses_the_head(server: Server) -> Talk:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too large\r\ncontent-length: 0\r\n\r\n")
            await reader.readexactly(8)
            await server.request(reader)
            writer.write(ANSWER)

        return talk

    async with serving(refuses_the_head) as (server, relay), relay.followed(opened(server)) as log:
        reader, writer = await connected(log)
        async with asyncio.timeout(20):
            writer.write(head_of(log, 8))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413")
            writer.write(b'{"a": 1}' + head_of(log, 2) + b"{}")
            assert await reader.readexactly(len(ANSWER)) == ANSWER
        writer.close()
        assert await log.lost_call() is None


def test_models_of_resources_at_the_gateway_are_reached_through_the_relay_too() -> None:
    gateway, elsewhere = "http://10.0.0.1:4748", "https://models.example/v1"
    attempt = OpenedAttempt(
        rollout_id="r1",
        attempt_id="at-1",
        sequence_id=1,
        fence=1,
        token="k",
        base_url=f"{gateway}/rollout/r1/attempt/at-1/v1",
        config=RolloutConfig(),
        resources={
            "judge": ProxyLLM(endpoint=f"{gateway}/v1", model="judge"),
            "other": LLM(endpoint=elsewhere, model="other"),
            "prompt": PromptTemplate(template="{x}"),
        },
    )
    relay = "http://127.0.0.1:9"
    call = AgentCall.from_opened(attempt, "agent").by_way_of(f"{relay}/rollout/r1/attempt/at-1/v1")
    judge = call.resources["judge"]
    assert isinstance(judge, ProxyLLM)
    assert judge.get_base_url("r1", "at-1") == f"{relay}/rollout/r1/attempt/at-1/v1" == (call.llm and call.llm.endpoint)
    assert call.resources["other"] == attempt.resources["other"]
    assert call.resources["prompt"] == attempt.resources["prompt"]
