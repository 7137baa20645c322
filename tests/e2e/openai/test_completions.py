import pytest

from serving import BASE


def test_text(client):
    answer = client.completions.create(
        model=BASE, prompt="The weather is", temperature=0, max_tokens=8
    )
    assert answer.object == "text_completion"
    assert answer.model == BASE
    assert answer.choices[0].text
    assert answer.usage.completion_tokens <= 8


def test_stream_is_the_answer(client):
    wanted = client.completions.create(
        model=BASE, prompt="The weather is", temperature=0, max_tokens=24
    )
    chunks = list(
        client.completions.create(
            model=BASE,
            prompt="The weather is",
            temperature=0,
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert text == wanted.choices[0].text
    assert chunks[-1].usage == wanted.usage


def test_token_ids(client, server):
    ids = server.post("/tokenize", {"model": BASE, "prompt": "The weather is"}).json()["tokens"]
    assert ids
    text = server.post("/detokenize", {"model": BASE, "tokens": ids}).json()["prompt"]
    assert text == "The weather is"
    by_ids = client.completions.create(model=BASE, prompt=ids, temperature=0, max_tokens=8)
    by_text = client.completions.create(
        model=BASE, prompt="The weather is", temperature=0, max_tokens=8
    )
    assert by_ids.choices[0].text == by_text.choices[0].text
    assert by_ids.usage.prompt_tokens == len(ids)


def test_batch_of_prompts(client):
    prompts = ["The weather is", "Once upon a time", "Two and two"]
    alone = [
        client.completions.create(model=BASE, prompt=prompt, temperature=0, max_tokens=8)
        for prompt in prompts
    ]
    answer = client.completions.create(model=BASE, prompt=prompts, temperature=0, max_tokens=8)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.text for choice in answer.choices] == [one.choices[0].text for one in alone]
    assert answer.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone)
    twice = client.completions.create(
        model=BASE, prompt=prompts[:2], temperature=1, seed=3, n=2, max_tokens=4
    )
    assert [choice.index for choice in twice.choices] == [0, 1, 2, 3]


def test_logprobs(client):
    answer = client.completions.create(
        model=BASE, prompt="The weather is", temperature=0, max_tokens=6, logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs)
    assert len(logprobs.tokens) == len(logprobs.text_offset) == answer.usage.completion_tokens
    assert "".join(logprobs.tokens) == answer.choices[0].text
    for chosen, top in zip(logprobs.token_logprobs, logprobs.top_logprobs):
        assert chosen == pytest.approx(max(top.values()), abs=1e-6)


def test_echo(client):
    prompt = "The weather is"
    answer = client.completions.create(
        model=BASE, prompt=prompt, temperature=0, max_tokens=4, echo=True, logprobs=1
    )
    assert answer.choices[0].text.startswith(prompt)
    logprobs = answer.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert len(logprobs.tokens) == answer.usage.total_tokens
    # What lm-eval asks: the prompt's own likelihood, nothing generated.
    scored = client.completions.create(
        model=BASE, prompt=prompt, temperature=0, max_tokens=0, echo=True, logprobs=1
    )
    assert scored.choices[0].text == prompt
    count = scored.usage.prompt_tokens
    assert scored.choices[0].logprobs.token_logprobs == logprobs.token_logprobs[:count]


def test_sampling_fields(client):
    options = dict(model=BASE, prompt="The weather is", max_tokens=8, temperature=0.8, seed=11)
    extra = dict(top_k=20, min_p=0.01, repetition_penalty=1.1)
    first = client.completions.create(**options, top_p=0.9, extra_body=extra)
    again = client.completions.create(**options, top_p=0.9, extra_body=extra)
    assert first.choices[0].text == again.choices[0].text
    greedy = client.completions.create(model=BASE, prompt="The weather is", max_tokens=1, temperature=0)
    word = greedy.choices[0].text
    token = server_token(client, word)
    banned = client.completions.create(
        model=BASE, prompt="The weather is", max_tokens=1, temperature=0, logit_bias={token: -100}
    )
    assert banned.choices[0].text != word


def server_token(client, text):
    import httpx

    url = str(client.base_url).removesuffix("/v1/") + "/tokenize"
    body = {"model": BASE, "prompt": text, "add_special_tokens": False}
    (token,) = httpx.post(url, json=body, timeout=10).json()["tokens"]
    return str(token)


def test_min_tokens_and_ignore_eos(client):
    answer = client.completions.create(
        model=BASE,
        prompt="The weather is",
        temperature=0,
        max_tokens=40,
        extra_body={"ignore_eos": True, "min_tokens": 40},
    )
    assert answer.usage.completion_tokens == 40
    assert answer.choices[0].finish_reason == "length"
