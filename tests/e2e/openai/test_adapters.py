"""Models that are told, adapters that come and go, and who may do it."""

import shutil

import httpx
import openai
import pytest

from serving import ADAPTERS, BASE, MODEL, TASKS, Server, ask, task_rows


def test_models(client):
    models = {model.id: model for model in client.models.list()}
    assert set(models) >= {BASE, *TASKS}
    for task in TASKS:
        assert models[task].model_extra["parent"] == BASE
        assert models[task].model_extra["root"] == str(ADAPTERS[task])
    assert client.models.retrieve("sql").id == "sql"
    assert client.models.retrieve(BASE).object == "model"


def answer_of(client, model, row):
    answer = client.chat.completions.create(
        model=model, messages=ask(row), temperature=0, max_tokens=80
    )
    assert answer.model == model
    return answer.choices[0].message.content.strip()


def test_load_use_unload(client, server):
    row = task_rows("json", 1)[0]
    body = {"lora_name": "late", "lora_path": str(ADAPTERS["json"])}
    loaded = server.post("/v1/load_lora_adapter", body)
    assert loaded.status_code == 200
    assert loaded.text == "Success: LoRA adapter 'late' added successfully."
    assert answer_of(client, "late", row) == row["a"]
    again = server.post("/v1/load_lora_adapter", body)
    assert again.status_code == 400
    unloaded = server.post("/v1/unload_lora_adapter", {"lora_name": "late"})
    assert unloaded.status_code == 200
    assert unloaded.text == "Success: LoRA adapter 'late' removed successfully."
    with pytest.raises(openai.NotFoundError):
        answer_of(client, "late", row)
    gone = server.post("/v1/unload_lora_adapter", {"lora_name": "late"})
    assert gone.status_code == 404
    assert "late" in gone.json()["error"]["message"]


def test_load_inplace_is_a_new_version(client, server):
    sql, math = task_rows("sql", 1)[0], task_rows("math", 1)[0]
    body = {"lora_name": "swap", "lora_path": str(ADAPTERS["sql"])}
    assert server.post("/v1/load_lora_adapter", body).status_code == 200
    try:
        assert answer_of(client, "swap", sql) == sql["a"]
        body = {"lora_name": "swap", "lora_path": str(ADAPTERS["math"]), "load_inplace": True}
        assert server.post("/v1/load_lora_adapter", body).status_code == 200
        assert answer_of(client, "swap", math) == math["a"]
        # The same prompt again: nothing of the old version is reused.
        assert answer_of(client, "swap", sql) == answer_of(client, "math", sql)
    finally:
        server.post("/v1/unload_lora_adapter", {"lora_name": "swap"})


@pytest.mark.parametrize(
    "body,status",
    [
        ({}, 400),
        ({"lora_name": "x"}, 400),
        ({"lora_path": str(MODEL)}, 400),
        ({"lora_name": "x", "lora_path": str(MODEL / "adapters/none")}, 404),
        ({"lora_name": BASE, "lora_path": str(MODEL / "adapters/sql")}, 400),
        ({"lora_name": 5, "lora_path": str(MODEL / "adapters/sql")}, 400),
    ],
)
def test_loads_that_are_refused(server, body, status):
    answer = server.post("/v1/load_lora_adapter", body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


def test_a_folder_outside_is_refused(server, tmp_path):
    shutil.copytree(ADAPTERS["sql"], tmp_path / "sql")
    body = {"lora_name": "outside", "lora_path": str(tmp_path / "sql")}
    answer = server.post("/v1/load_lora_adapter", body)
    assert 400 <= answer.status_code < 500
    # Not even through a link that lies inside.
    answer = server.post(
        "/v1/load_lora_adapter",
        {"lora_name": "outside", "lora_path": f"{MODEL}/../../../../{tmp_path}/sql"},
    )
    assert 400 <= answer.status_code < 500


def test_a_broken_adapter_leaves_nothing(tmp_path):
    shutil.copytree(ADAPTERS["sql"], tmp_path / "half")
    weights = tmp_path / "half/adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with Server(["--allow-runtime-lora", "--lora-root", tmp_path]) as server:
        body = {"lora_name": "half", "lora_path": str(tmp_path / "half")}
        answer = server.post("/v1/load_lora_adapter", body)
        assert answer.status_code == 400
        assert "adapter_model.safetensors" in answer.json()["error"]["message"]
        names = [m["id"] for m in httpx.get(server.url + "/v1/models").json()["data"]]
        assert names == [BASE]


def test_lora_dir(tmp_path):
    """An unknown name is looked up in the folder and loaded on first use."""
    for task in TASKS:
        shutil.copytree(ADAPTERS[task], tmp_path / task)
    with Server(["--lora-dir", tmp_path, "--max-loras", "1", "--max-cpu-loras", "2"]) as server:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client:
            for _ in range(2):
                for task in TASKS:
                    row = task_rows(task, 1)[0]
                    assert answer_of(client, task, row) == row["a"]
            with pytest.raises(openai.NotFoundError):
                answer_of(client, "../" + tmp_path.name + "/sql", task_rows("sql", 1)[0])


def test_without_the_flag_nobody_loads():
    with Server() as server:
        body = {"lora_name": "x", "lora_path": str(ADAPTERS["sql"])}
        assert server.post("/v1/load_lora_adapter", body).status_code in (403, 404)
        names = [m["id"] for m in httpx.get(server.url + "/v1/models").json()["data"]]
        assert names == [BASE]


def test_keys():
    flags = ["--api-key", "secret", "--allow-runtime-lora", "--lora-root", MODEL]
    flags += ["--admin-api-key", "admin"]
    with Server(flags) as server:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError) as raised:
                client.models.list()
            assert raised.value.status_code == 401
        with openai.OpenAI(base_url=server.url + "/v1", api_key="secret", max_retries=0) as client:
            assert [model.id for model in client.models.list()] == [BASE]
            body = {"lora_name": "sql", "lora_path": str(ADAPTERS["sql"])}
            as_user = {"authorization": "Bearer secret"}
            as_admin = {"authorization": "Bearer admin"}
            refused = server.post("/v1/load_lora_adapter", body, headers=as_user)
            assert refused.status_code in (401, 403)
            assert server.post("/v1/load_lora_adapter", body).status_code == 401
            loaded = server.post("/v1/load_lora_adapter", body, headers=as_admin)
            assert loaded.status_code == 200
            row = task_rows("sql", 1)[0]
            assert answer_of(client, "sql", row) == row["a"]
        assert httpx.get(server.url + "/health").status_code == 200
