#!/usr/bin/env python3
"""Makes the small seeded models of tests/data/models and their references: Qwen3-MoE, OLMoE and Mixtral as Transformers builds
them, PEFT adapters on attention, router and experts, and log-probabilities of a float32 forward of the stored weights.
usage: tools/make_small_models.py OUT   (pip install torch transformers peft safetensors)"""
import json
import pathlib
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (MixtralConfig, MixtralForCausalLM, OlmoeConfig, OlmoeForCausalLM, Qwen3MoeConfig,
                          Qwen3MoeForCausalLM)

VOCAB, HIDDEN, LAYERS, EXPERTS, TOP_K, INNER = 320, 64, 2, 8, 2, 48

COMMON = dict(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_experts_per_tok=TOP_K,
              max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=None)
MODELS = {
    "qwen3_moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig(
        **COMMON, num_attention_heads=6, num_key_value_heads=2, head_dim=16, num_experts=EXPERTS, moe_intermediate_size=INNER,
        intermediate_size=96, norm_topk_prob=True, rope_theta=1e6, rms_norm_eps=1e-6, tie_word_embeddings=False)),
    "olmoe": (OlmoeForCausalLM, OlmoeConfig(
        **COMMON, num_attention_heads=4, num_key_value_heads=4, num_experts=EXPERTS, intermediate_size=INNER, clip_qkv=1.5,
        norm_topk_prob=False, rope_theta=1e4, rms_norm_eps=1e-5, tie_word_embeddings=False)),
    "mixtral": (MixtralForCausalLM, MixtralConfig(
        **COMMON, num_attention_heads=8, num_key_value_heads=2, num_local_experts=EXPERTS, intermediate_size=INNER, rope_theta=1e6,
        rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=None)),
}
# Loud enough that a seam, a norm or a router that is left out shows.
ADAPTERS = {
    "attention": dict(target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], r=4, lora_alpha=8),
    "experts": dict(target_modules=[], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"], r=3, lora_alpha=6),
    "all": dict(target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
                target_parameters=["mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"], r=2, lora_alpha=4,
                use_rslora=True),
}


def randomize(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        if parameter.dim() == 1:
            value = 1 + 0.2 * torch.randn(parameter.shape, generator=generator)
        else:
            fan_in = parameter.shape[-1]
            gain = 2.0 if name.endswith("gate.weight") else 0.6 if name.startswith("lm_head") else 1.5
            value = gain / fan_in**0.5 * torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(value.to(torch.bfloat16).float())


def logprobs(model, ids):
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0].float(), dim=-1)


def case(model, prompt, steps):
    ids = list(prompt)
    for _ in range(steps):
        ids.append(int(logprobs(model, ids)[-1].argmax()))
    lp = logprobs(model, ids)
    n = len(prompt)
    top = lp[n - 1:-1].topk(5)
    chosen = [round(float(lp[i, ids[i + 1]]), 6) for i in range(len(ids) - 1)]
    return {"prompt_ids": prompt, "output_ids": ids[n:], "prompt_logprobs": chosen[:n - 1], "token_logprobs": chosen[n - 1:],
            "top5_ids": top.indices.tolist(), "top5_logprobs": [[round(v, 6) for v in row] for row in top.values.tolist()]}


def write(out, name, make, config, seed):
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    torch.manual_seed(seed)
    model = make(config).float().eval()
    randomize(model, seed)
    model.to(torch.bfloat16).save_pretrained(folder)
    model = make.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed + 1)
    prompts = [torch.randint(3, VOCAB, (n,), generator=generator).tolist() for n in (1, 5, 19, 40)]
    cases = {"base": [case(model, p, 12) for p in prompts]}
    for index, (adapter, settings) in enumerate(ADAPTERS.items()):
        base = make.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        peft = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **settings)).eval()
        noise = torch.Generator().manual_seed(seed + 10 + index)
        for key, parameter in sorted(peft.named_parameters()):
            if "lora_A" in key:
                parameter.data = torch.randn(parameter.shape, generator=noise) / parameter.shape[-1]**0.5
            elif "lora_B" in key:
                parameter.data = 0.4 * torch.randn(parameter.shape, generator=noise)
            if "lora_" in key:
                parameter.data = parameter.data.to(torch.bfloat16).float()
        target = folder / "adapters" / adapter
        peft.save_pretrained(target)
        tensors = {k: v.to(torch.bfloat16) for k, v in load_file(target / "adapter_model.safetensors").items()}
        save_file(tensors, target / "adapter_model.safetensors", metadata={"format": "pt"})
        (target / "README.md").unlink(missing_ok=True)
        cases[adapter] = [case(peft, p, 12) for p in prompts]
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "reference.json").write_text(json.dumps({"cases": cases}))


if __name__ == "__main__":
    for seed, (name, (make, config)) in enumerate(MODELS.items()):
        write(pathlib.Path(sys.argv[1]), name, make, config, 100 * (seed + 1))
