"""Many clients on several adapters at once: everybody gets the answer of the adapter they named."""

import anyio
import pytest

from serving import BASE, TASKS, ask, task_rows

ROWS = 64


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_64_at_once(async_client, stream):
    questions = [(task, row) for task in TASKS for row in task_rows(task, ROWS // 2)]
    answers = [None] * len(questions)
    slots = anyio.Semaphore(64)

    async def one(index):
        task, row = questions[index]
        async with slots:
            answer = await async_client.chat.completions.create(
                model=task, messages=ask(row), temperature=0, max_tokens=80, stream=stream
            )
            if stream:
                text = ""
                async for chunk in answer:
                    assert chunk.model == task
                    if chunk.choices:
                        text += chunk.choices[0].delta.content or ""
            else:
                assert answer.model == task
                text = answer.choices[0].message.content
            answers[index] = text.strip()

    async with anyio.create_task_group() as group:
        for index in range(len(questions)):
            group.start_soon(one, index)
    for task in TASKS:
        pairs = [
            (answer, row["a"])
            for answer, (asked, row) in zip(answers, questions)
            if asked == task
        ]
        right = sum(answer == wanted for answer, wanted in pairs)
        assert right >= 0.85 * len(pairs), f"{task}: {right} of {len(pairs)}"


@pytest.mark.anyio
async def test_company_changes_nothing(async_client):
    rows = task_rows("math", 8)

    async def text(row, model="math"):
        answer = await async_client.chat.completions.create(
            model=model, messages=ask(row), temperature=0, max_tokens=80, logprobs=True
        )
        return [(token.token, token.logprob) for token in answer.choices[0].logprobs.content]

    alone = [await text(row) for row in rows]
    together = [None] * len(rows)

    async def one(index):
        together[index] = await text(rows[index])

    async with anyio.create_task_group() as group:
        for index in range(len(rows)):
            group.start_soon(one, index)
            group.start_soon(text, rows[index], "sql")
            group.start_soon(text, rows[index], BASE)
    assert together == alone


@pytest.mark.anyio
async def test_responses_and_completions(async_client):
    row = task_rows("sql", 1)[0]
    response = await async_client.responses.create(
        model="sql", input=row["q"], temperature=0, max_output_tokens=80
    )
    assert response.output_text.strip() == row["a"]
    models = [model.id async for model in async_client.models.list()]
    assert models[0] == BASE
    completion = await async_client.completions.create(model=BASE, prompt="Once", max_tokens=2)
    assert completion.choices[0].text
