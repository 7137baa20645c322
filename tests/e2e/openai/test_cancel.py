"""Clients that leave: what they asked for ends at once (bug case U01)."""

import threading
import time

import anyio
import httpx
import openai
import pytest

from serving import BASE, ask, task_rows

LONG = dict(
    model=BASE, prompt="Once", temperature=0, max_tokens=4000, extra_body={"ignore_eos": True}
)


def test_timeout(client, server):
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).completions.create(**LONG)
    server.wait_idle(2)


def test_stream_closed(client, server):
    stream = client.completions.create(**LONG, stream=True)
    for count, _ in enumerate(stream):
        if count == 5:
            break
    assert server.running() >= 1
    stream.close()
    server.wait_idle(2)


@pytest.mark.parametrize("stream", [False, True])
def test_connections_dropped(server, stream):
    body = {**LONG, "stream": stream, **LONG["extra_body"]}
    del body["extra_body"]

    def ask_and_leave():
        try:
            with httpx.stream(
                "POST", server.url + "/v1/completions", json=body, timeout=1
            ) as answer:
                for _ in answer.iter_bytes():
                    if time.monotonic() > deadline:
                        return
        except httpx.TimeoutException:
            pass

    deadline = time.monotonic() + 1
    threads = [threading.Thread(target=ask_and_leave) for _ in range(8)]
    for thread in threads:
        thread.start()
    server.wait_running()
    for thread in threads:
        thread.join()
    server.wait_idle(2)


@pytest.mark.anyio
async def test_cancelled_task(async_client, server):
    with anyio.move_on_after(0.3) as scope:
        await async_client.completions.create(**LONG)
    assert scope.cancelled_caught
    await anyio.to_thread.run_sync(server.wait_idle, 2)


def test_one_leaves_the_others_stay(client, server):
    row = task_rows("math", 1)[0]
    stream = client.completions.create(**LONG, stream=True)
    next(iter(stream))
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(
            client.chat.completions.create(
                model="math", messages=ask(row), temperature=0, max_tokens=80
            )
        )
    )
    thread.start()
    stream.close()
    thread.join()
    assert answers[0].choices[0].message.content.strip() == row["a"]
    server.wait_idle(2)
