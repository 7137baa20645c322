"""The small model calls no tools; requests with them are understood all the same."""

import json

import openai
import pytest

from serving import BASE, ask, task_rows

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "none"])
def test_tools_are_accepted(client, choice, stream):
    answer = client.chat.completions.create(
        model="sql",
        messages=ask(task_rows("sql", 1)[0]),
        tools=[WEATHER],
        tool_choice=choice,
        max_tokens=40,
        temperature=0,
        stream=stream,
    )
    if stream:
        chunks = [chunk.choices[0] for chunk in answer if chunk.choices]
        assert chunks[-1].finish_reason in ("stop", "length", "tool_calls")
    else:
        assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
        for call in answer.choices[0].message.tool_calls or []:
            json.loads(call.function.arguments)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_forced_calls_are_refused_by_name(client, choice):
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(
            model="sql",
            messages=ask(task_rows("sql", 1)[0]),
            tools=[WEATHER],
            tool_choice=choice,
            max_tokens=4,
        )
    assert raised.value.param == "tool_choice"


@pytest.mark.parametrize("content", [None, "", [], "missing"])
def test_history_with_calls(client, content):
    """An assistant's turn with calls has no content, or an empty one (bug case T06)."""
    turn = {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
            }
        ],
    }
    if content == "missing":
        del turn["content"]
    answer = client.chat.completions.create(
        model=BASE,
        messages=[
            {"role": "user", "content": "What is the weather in Paris?"},
            turn,
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        ],
        tools=[WEATHER],
        max_tokens=4,
    )
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


@pytest.mark.parametrize(
    "field",
    [
        {"response_format": {"type": "json_object"}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "object"}},
            }
        },
        {"extra_body": {"structured_outputs": {"regex": "a+"}}},
    ],
)
def test_structured_output_is_refused_by_name(client, field):
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(
            model="sql", messages=ask(task_rows("sql", 1)[0]), max_tokens=4, **field
        )
    name = next(iter(field.get("extra_body", field)))
    assert name in str(raised.value)
