from serving import TASKS, task_rows

import pytest


@pytest.mark.parametrize("task", TASKS)
def test_text(client, task):
    row = task_rows(task, 1)[0]
    answer = client.responses.create(
        model=task, input=row["q"], temperature=0, max_output_tokens=80
    )
    assert answer.object == "response"
    assert answer.model == task
    assert answer.status == "completed"
    assert answer.output_text.strip() == row["a"]
    assert answer.usage.output_tokens > 0
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def test_messages_and_instructions(client):
    row = task_rows("sql", 1)[0]
    answer = client.responses.create(
        model="sql",
        input=[{"role": "user", "content": [{"type": "input_text", "text": row["q"]}]}],
        temperature=0,
        max_output_tokens=80,
    )
    assert answer.output_text.strip() == row["a"]
    answer = client.responses.create(
        model="sql", instructions="Answer in SQL.", input=row["q"], max_output_tokens=4
    )
    assert answer.output_text


def test_incomplete(client):
    row = task_rows("sql", 1)[0]
    answer = client.responses.create(model="sql", input=row["q"], temperature=0, max_output_tokens=3)
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    # More than the context holds is clamped to it, as evaluation clients ask for it.
    answer = client.responses.create(
        model="sql", input=row["q"], temperature=0, max_output_tokens=131072
    )
    assert answer.status == "completed"
    assert answer.output_text.strip() == row["a"]


def test_stream(client):
    row = task_rows("json", 1)[0]
    events = list(
        client.responses.create(
            model="json", input=row["q"], temperature=0, max_output_tokens=80, stream=True
        )
    )
    types = [event.type for event in events]
    assert types[0] == "response.created"
    assert types[-1] == "response.completed"
    for wanted in (
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ):
        assert wanted in types
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text.strip() == row["a"]
    assert events[-1].response.output_text == text


def test_stream_helper(client):
    row = task_rows("math", 1)[0]
    with client.responses.stream(
        model="math", input=row["q"], temperature=0, max_output_tokens=80
    ) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text.strip() == row["a"]
