"""The official OpenAI client against `lorikeet serve` on the small model."""

import openai
import pytest

from serving import ADAPTERS, MODEL, Server


@pytest.fixture(scope="session")
def server():
    """The model with its three adapters; shared by all tests that leave it as it is."""
    flags = ["--max-num-seqs", "64", "--allow-runtime-lora", "--lora-root", str(MODEL)]
    flags += ["--lora-modules"] + [f"{name}={path}" for name, path in ADAPTERS.items()]
    with Server(flags) as running:
        yield running


@pytest.fixture(scope="session")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def async_client(server):
    async with openai.AsyncOpenAI(
        base_url=server.url + "/v1", api_key="none", max_retries=0
    ) as made:
        yield made


@pytest.fixture(autouse=True)
def server_survives(request):
    """No test may leave requests behind, or a server that has ended."""
    yield
    if "server" in request.fixturenames:
        running = request.getfixturevalue("server")
        assert running.alive(), running.log()
        running.wait_idle(10)
