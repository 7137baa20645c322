import openai
import pytest

from serving import BASE, TASKS, ask, task_rows


@pytest.mark.parametrize("task", TASKS)
def test_adapters_answer(client, task):
    rows = task_rows(task, 10)
    right = 0
    for row in rows:
        answer = client.chat.completions.create(
            model=task, messages=ask(row), temperature=0, max_tokens=80
        )
        assert answer.object == "chat.completion"
        assert answer.model == task
        assert answer.system_fingerprint.startswith("lorikeet-")
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].message.role == "assistant"
        assert answer.usage.prompt_tokens > 0
        assert (
            answer.usage.total_tokens
            == answer.usage.prompt_tokens + answer.usage.completion_tokens
        )
        right += answer.choices[0].message.content.strip() == row["a"]
    assert right >= 8


def test_base_answers(client):
    answer = client.chat.completions.create(
        model=BASE, messages=[{"role": "user", "content": "Define coffee."}], max_tokens=12
    )
    assert answer.model == BASE
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_fingerprint_names_the_adapter(client):
    row = task_rows("sql", 1)[0]
    prints = {
        model: client.chat.completions.create(
            model=model, messages=ask(row), max_tokens=1
        ).system_fingerprint
        for model in (BASE, *TASKS)
    }
    assert len(set(prints.values())) == 4
    assert all(prints[task].startswith(prints[BASE]) for task in TASKS)


def test_stream_is_the_answer(client):
    row = task_rows("json", 1)[0]
    whole = client.chat.completions.create(
        model="json", messages=ask(row), temperature=0, max_tokens=80
    )
    chunks = list(
        client.chat.completions.create(
            model="json",
            messages=ask(row),
            temperature=0,
            max_tokens=80,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert all(chunk.model == "json" for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    text = "".join(choice.delta.content or "" for choice in choices)
    assert text == whole.choices[0].message.content
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_stream_without_usage(client):
    row = task_rows("json", 1)[0]
    chunks = list(
        client.chat.completions.create(
            model="json", messages=ask(row), max_tokens=80, stream=True
        )
    )
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_stream_helper(client):
    """The client's own accumulator understands the stream."""
    row = task_rows("math", 1)[0]
    with client.chat.completions.stream(
        model="math", messages=ask(row), temperature=0, max_tokens=80
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content.strip() == row["a"]
    assert final.choices[0].finish_reason == "stop"


def test_logprobs(client):
    row = task_rows("sql", 1)[0]
    answer = client.chat.completions.create(
        model="sql", messages=ask(row), temperature=0, max_tokens=8, logprobs=True, top_logprobs=4
    )
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 8
    for token in tokens:
        assert token.logprob <= 0
        assert bytes(token.bytes).decode(errors="replace") == token.token
        assert len(token.top_logprobs) == 4
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob, abs=1e-6)
        assert token.top_logprobs[0].token == token.token
    assert "".join(token.token for token in tokens) == answer.choices[0].message.content
    streamed = []
    for chunk in client.chat.completions.create(
        model="sql",
        messages=ask(row),
        temperature=0,
        max_tokens=8,
        logprobs=True,
        top_logprobs=4,
        stream=True,
    ):
        if chunk.choices and chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert [token.token for token in streamed] == [token.token for token in tokens]
    assert [token.logprob for token in streamed] == [token.logprob for token in tokens]


def test_n(client):
    row = task_rows("sql", 1)[0]
    answer = client.chat.completions.create(
        model=BASE, messages=ask(row), temperature=1, seed=7, max_tokens=12, n=3
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1
    again = client.chat.completions.create(
        model=BASE, messages=ask(row), temperature=1, seed=7, max_tokens=12, n=3
    )
    assert [c.message.content for c in again.choices] == [
        c.message.content for c in answer.choices
    ]
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(
        model=BASE, messages=ask(row), temperature=1, seed=7, max_tokens=12, n=3, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in answer.choices]


def test_stop(client):
    row = task_rows("sql", 1)[0]
    whole = client.chat.completions.create(
        model="sql", messages=ask(row), temperature=0, max_tokens=80
    ).choices[0]
    for stop in (" FROM", ["nowhere", " FROM", "WHERE"]):
        for stream in (False, True):
            answer = client.chat.completions.create(
                model="sql",
                messages=ask(row),
                temperature=0,
                max_tokens=80,
                stop=stop,
                stream=stream,
            )
            if stream:
                chunks = [chunk.choices[0] for chunk in answer if chunk.choices]
                text = "".join(choice.delta.content or "" for choice in chunks)
                reason = chunks[-1].finish_reason
            else:
                text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
            assert text == whole.message.content.split(" FROM")[0]
            assert reason == "stop"


def test_length(client):
    row = task_rows("sql", 1)[0]
    for name in ("max_tokens", "max_completion_tokens"):
        answer = client.chat.completions.create(
            model="sql", messages=ask(row), temperature=0, **{name: 3}
        )
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 3


def test_conversation_forms(client):
    """What agents send: parts of text, empty and missing contents."""
    row = task_rows("sql", 1)[0]
    wanted = client.chat.completions.create(
        model="sql", messages=ask(row), temperature=0, max_tokens=80
    ).choices[0]
    parts = [{"role": "user", "content": [{"type": "text", "text": row["q"]}]}]
    assert (
        client.chat.completions.create(
            model="sql", messages=parts, temperature=0, max_tokens=80
        ).choices[0]
        == wanted
    )
    for messages in ([{"role": "assistant", "content": "Hi."}], [{"role": "system", "content": "x"}]):
        try:
            client.chat.completions.create(model="sql", messages=messages, max_tokens=2)
        except openai.BadRequestError as error:
            assert error.status_code == 400


def test_unknown_fields_are_accepted(client):
    row = task_rows("sql", 1)[0]
    answer = client.chat.completions.create(
        model="sql",
        messages=ask(row),
        temperature=0,
        max_tokens=4,
        user="somebody",
        metadata={"a": "b"},
        extra_body={"no_such_field": [1], "chat_template_kwargs": {"enable_thinking": False}},
    )
    assert answer.choices[0].message.content


def test_reasoning_effort(client):
    row = task_rows("sql", 1)[0]
    answer = client.chat.completions.create(
        model="sql", messages=ask(row), temperature=0, max_tokens=4, reasoning_effort="high"
    )
    assert answer.choices[0].message.content
