import httpx
import openai
import pytest

from serving import BASE, ask, task_rows

MESSAGES = [{"role": "user", "content": "Hi."}]


def test_unknown_model(client):
    for create in (
        lambda: client.chat.completions.create(model="nobody", messages=MESSAGES),
        lambda: client.completions.create(model="nobody", prompt="x"),
        lambda: client.responses.create(model="nobody", input="x"),
    ):
        with pytest.raises(openai.NotFoundError) as raised:
            create()
        assert raised.value.status_code == 404
        assert raised.value.param == "model"
        assert raised.value.code == "model_not_found"
        assert "nobody" in raised.value.message
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


@pytest.mark.parametrize(
    "field,value",
    [
        ("temperature", -1),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.5),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("max_tokens", 1.5),
        ("n", 0),
        ("n", "two"),
        ("stop", 5),
        ("stop", [1]),
        ("seed", "x"),
        ("presence_penalty", 1000),
        ("frequency_penalty", []),
        ("logit_bias", [1]),
        ("logit_bias", {"a": 1}),
        ("logprobs", 3),
        ("top_logprobs", -1),
        ("stream", "yes"),
        ("messages", []),
        ("messages", "Hi."),
        ("messages", [5]),
        ("top_k", 0.5),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("min_tokens", -1),
        ("tools", {}),
    ],
)
def test_wrong_values_name_the_field(client, field, value):
    body = {"model": "sql", "messages": MESSAGES, "max_tokens": 2, field: value}
    if field == "top_logprobs":
        body["logprobs"] = True
    with pytest.raises(openai.BadRequestError) as raised:
        client.post("/chat/completions", body=body, cast_to=httpx.Response)
    assert raised.value.status_code == 400
    assert raised.value.type == "invalid_request_error"
    assert (raised.value.param or "").startswith(field), raised.value.body


def test_too_long(client):
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=BASE, prompt="word " * 6000, max_tokens=1)
    assert raised.value.code == "context_length_exceeded"
    assert "4096" in raised.value.message


def test_suffix_is_refused(client):
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=BASE, prompt="a", suffix="b", max_tokens=1)
    assert raised.value.param == "suffix"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'"x"', b"[" * 100000])
def test_bodies_that_are_no_request(server, body):
    answer = httpx.post(
        server.url + "/v1/chat/completions",
        content=body,
        headers={"content-type": "application/json"},
        timeout=10,
    )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]


def test_routes(server):
    assert httpx.get(server.url + "/nowhere").status_code == 404
    assert "error" in httpx.get(server.url + "/nowhere").json()
    wrong = httpx.get(server.url + "/v1/chat/completions")
    assert wrong.status_code == 405
    assert httpx.get(server.url + "/health").status_code == 200
    assert httpx.get(server.url + "/version").json()["version"]


def test_the_next_request_is_right(client):
    row = task_rows("sql", 1)[0]
    answer = client.chat.completions.create(
        model="sql", messages=ask(row), temperature=0, max_tokens=80
    )
    assert answer.choices[0].message.content.strip() == row["a"]
