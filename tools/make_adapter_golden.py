#!/usr/bin/env python3
"""Makes tests/data/adapters/: small PEFT adapters with the dense delta weights that PEFT computes from them.

Each folder holds adapter_config.json and adapter_model.safetensors as PEFT saves them, and delta.safetensors: for each
adapted linear of the model, under the name of the published checkpoint, the delta [out, in] or [experts, out, in] in
float32. The values of A and B are rounded to bfloat16 before, so that a loader that keeps bfloat16 loses nothing.

Needs torch, transformers 5 and peft (0.21 made the files that are committed). Usage: make_adapter_golden.py [FOLDER [CASE ...]]
"""

import json
import pathlib
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (GptOssConfig, GptOssForCausalLM, NemotronHConfig, NemotronHForCausalLM, Qwen3_5MoeConfig,
                          Qwen3_5MoeForCausalLM, Qwen3_5MoeForConditionalGeneration, Qwen3_5MoeTextConfig, Qwen3MoeConfig,
                          Qwen3MoeForCausalLM)

LAYERS, EXPERTS, HIDDEN, INTER, VOCAB = 2, 3, 16, 12, 40
SIZES = dict(num_hidden_layers=LAYERS, hidden_size=HIDDEN, vocab_size=VOCAB, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, num_experts_per_tok=2, max_position_embeddings=64,
             tie_word_embeddings=False)


def gpt_oss():
    return GptOssForCausalLM(GptOssConfig(num_local_experts=EXPERTS, intermediate_size=INTER, **SIZES))


def qwen3_moe():
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(num_experts=EXPERTS, moe_intermediate_size=INTER,
                                              intermediate_size=INTER, **SIZES))


QWEN3_5 = dict(SIZES, layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2, linear_num_value_heads=4,
               linear_key_head_dim=4, linear_value_head_dim=4, linear_conv_kernel_dim=4, num_experts=EXPERTS,
               moe_intermediate_size=INTER, shared_expert_intermediate_size=10)
NEMOTRON_H = dict({k: v for k, v in SIZES.items() if k != "num_hidden_layers"}, mamba_num_heads=4, mamba_head_dim=6,
                  n_groups=2, ssm_state_size=4, conv_kernel=4, n_routed_experts=EXPERTS, moe_intermediate_size=INTER,
                  moe_shared_expert_intermediate_size=20, layers_block_type=["linear_attention", "moe", "full_attention"])


def qwen3_5_text():
    return Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**QWEN3_5))


def qwen3_5_whole():
    vision = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=1, out_hidden_size=HIDDEN, patch_size=2,
                  num_position_embeddings=4)
    return Qwen3_5MoeForConditionalGeneration(Qwen3_5MoeConfig(text_config=QWEN3_5, vision_config=vision))


def nemotron_h(latent=None):
    return NemotronHForCausalLM(NemotronHConfig(**NEMOTRON_H, moe_latent_size=latent))


class NemotronModules(torch.nn.Module):
    """The linears of a Nemotron-H layer of each kind, with the names of the published files and their own code."""

    def __init__(self):
        super().__init__()
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False)
        mlp = lambda width: torch.nn.ModuleDict({"up_proj": linear(HIDDEN, width), "down_proj": linear(width, HIDDEN)})
        mixers = [{"in_proj": linear(HIDDEN, 24 + 40 + 4), "out_proj": linear(24, HIDDEN)},
                  {"experts": torch.nn.ModuleList(mlp(INTER) for _ in range(EXPERTS)), "shared_experts": mlp(20),
                   "gate": linear(HIDDEN, EXPERTS)},
                  {"q_proj": linear(HIDDEN, 32), "k_proj": linear(HIDDEN, 16), "v_proj": linear(HIDDEN, 16),
                   "o_proj": linear(32, HIDDEN)}]
        layers = torch.nn.ModuleList(torch.nn.ModuleDict({"mixer": torch.nn.ModuleDict(m)}) for m in mixers)
        self.backbone = torch.nn.ModuleDict({"layers": layers})
        self.config = {}


class PerExpert(torch.nn.Module):
    """A model whose experts are modules, with the names of Transformers 4 (Qwen3-MoE, OLMoE)."""

    def __init__(self, names=("gate_proj", "up_proj", "down_proj")):
        super().__init__()
        gate, up, down = names
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False)
        expert = lambda: torch.nn.ModuleDict(
            {gate: linear(HIDDEN, INTER), up: linear(HIDDEN, INTER), down: linear(INTER, HIDDEN)})
        layer = lambda: torch.nn.ModuleDict({"mlp": torch.nn.ModuleDict({
            "experts": torch.nn.ModuleList(expert() for _ in range(EXPERTS)), "gate": linear(HIDDEN, EXPERTS)})})
        self.model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList(layer() for _ in range(LAYERS))})
        self.config = {}


def randomize(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                value = torch.randn(parameter.shape, generator=generator) * 0.3
                parameter.copy_(value.to(torch.bfloat16).float())


def wrappers(module):
    """ParamWrappers and LoRA layers from the outside in, each with the name of the parameter it adapts."""
    while hasattr(module, "lora_A"):
        yield getattr(module, "parameter_name", "weight"), module
        module = module.base_layer


def delta_weights(model, transposed):
    """Dense deltas under checkpoint names; experts that are modules are collected into one tensor."""
    out, parts, halves = {}, {}, {}
    seen = set()
    for name, module in model.base_model.model.named_modules():
        if not hasattr(module, "lora_A") or name.endswith("base_layer"):
            continue
        path = name.removeprefix("model.").removeprefix("language_model.").removeprefix("backbone.")
        for parameter, wrapper in wrappers(module):
            if id(wrapper) in seen:
                continue
            seen.add(id(wrapper))
            delta = wrapper.get_delta_weight("default").detach().float()
            segments = path.split(".")
            if parameter != "weight":
                out[f"{path}.{parameter}"] = (delta.transpose(1, 2) if transposed else delta).contiguous()
            elif "shared_expert" in segments and segments[-1] != "down_proj":
                halves.setdefault(path.rpartition(".")[0], {})[segments[-1]] = delta
            elif "experts" in segments:
                expert = int(segments[segments.index("experts") + 1])
                kind = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}.get(segments[-1], segments[-1])
                parts[".".join(segments[:segments.index("experts") + 1]), kind, expert] = delta
            else:
                out[path] = delta.contiguous()
    for root, delta in halves.items():
        out[f"{root}.gate_proj"] = torch.cat([delta["gate_proj"], delta["up_proj"]]).contiguous()
    for root in sorted({key[0] for key in parts}):
        shape = {"gate_proj": (INTER, HIDDEN), "up_proj": (INTER, HIDDEN), "down_proj": (HIDDEN, INTER)}
        stack = lambda kind: torch.stack(
            [parts.get((root, kind, e), torch.zeros(shape[kind])) for e in range(EXPERTS)])
        if root.endswith("mixer.experts"):
            out[f"{root}.up_proj"] = stack("up_proj").contiguous()
        elif any(key[0] == root and key[1] in ("gate_proj", "up_proj") for key in parts):
            out[f"{root}.gate_up_proj"] = torch.cat([stack("gate_proj"), stack("up_proj")], dim=1).contiguous()
        if any(key[0] == root and key[1] == "down_proj" for key in parts):
            out[f"{root}.down_proj"] = stack("down_proj").contiguous()
    return out


ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
BOTH = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
CASES = {
    "gpt-oss-full": (gpt_oss, dict(r=4, lora_alpha=8, target_modules=ATTENTION, target_parameters=BOTH)),
    "gpt-oss-down-only": (gpt_oss, dict(r=2, lora_alpha=6, target_modules=[],
                                        target_parameters=["mlp.experts.down_proj"])),
    "gpt-oss-gate-up-only": (gpt_oss, dict(r=2, lora_alpha=6, target_modules=[],
                                           target_parameters=["mlp.experts.gate_up_proj"])),
    "gpt-oss-one-layer": (gpt_oss, dict(r=3, lora_alpha=3, use_rslora=True, target_modules=["q_proj"],
                                        layers_to_transform=[1],
                                        target_parameters=["1.mlp.experts.gate_up_proj", "1.mlp.experts.down_proj"])),
    "gpt-oss-patterns": (gpt_oss, dict(
        r=4, lora_alpha=8, target_modules=r".*self_attn\.(q|v)_proj", target_parameters=BOTH + ["mlp.router.weight"],
        rank_pattern={"^model.layers.0.self_attn.q_proj": 2, r"layers\.\d+\.mlp\.experts\.down_proj": 3, "q_proj": 5},
        alpha_pattern={"experts.gate_up_proj": 1, "v_proj": 16, r".*\.router\.weight": 5})),
    "gpt-oss-embeddings": (gpt_oss, dict(r=3, lora_alpha=9, target_modules=["embed_tokens", "lm_head"])),
    "qwen3-moe-full": (qwen3_moe, dict(r=4, lora_alpha=8, use_rslora=True, target_modules=ATTENTION,
                                       target_parameters=BOTH + ["mlp.gate.weight"])),
    "per-expert": (PerExpert, dict(r=2, lora_alpha=6, target_modules=["gate_proj", "up_proj", "down_proj", "gate"])),
    "per-expert-some": (PerExpert, dict(
        r=2, lora_alpha=6, target_modules=r".*layers\.1\.mlp\.experts\.(0\.gate|2\.up|1\.(gate|up))_proj",
        rank_pattern={"up_proj": 3}, alpha_pattern={r"1\.up_proj": 4})),
    "per-expert-w": (lambda: PerExpert(("w1", "w3", "w2")), dict(r=2, lora_alpha=6, use_rslora=True,
                                                               target_modules=["w1", "w2", "w3"])),
    "qwen3_5-all-linear": (qwen3_5_text, dict(r=4, lora_alpha=8, target_modules="all-linear")),
    "qwen3_5-everything": (qwen3_5_whole, dict(
        r=2, lora_alpha=6, use_rslora=True, exclude_modules=r".*visual.*",
        target_modules=ATTENTION + ["in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj", "gate_proj", "up_proj",
                                    "down_proj", "shared_expert_gate"],
        target_parameters=BOTH + ["mlp.gate.weight"], rank_pattern={"in_proj_z": 3}, alpha_pattern={"up_proj": 2})),
    "nemotron_h-everything": (lambda: nemotron_h(latent=8), dict(
        r=2, lora_alpha=6, target_modules=ATTENTION + ["in_proj", "fc1_latent_proj", "fc2_latent_proj",
                                                       r"shared_experts.up_proj", "shared_experts.down_proj"],
        target_parameters=["mixer.experts.up_proj", "mixer.experts.down_proj", "mixer.gate.weight"])),
    "nemotron_h-per-expert": (NemotronModules, dict(
        r=2, lora_alpha=6, target_modules=ATTENTION + ["in_proj", "out_proj", "up_proj", "down_proj", "gate"])),
}


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1] / "tests/data/adapters")
    for seed, (name, (make, options)) in enumerate(CASES.items()):
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        torch.manual_seed(seed)
        model = get_peft_model(make(), LoraConfig(task_type=None, **options))
        randomize(model, seed)
        folder = root / name
        model.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        save_file(delta_weights(model, make is gpt_oss), folder / "delta.safetensors")
        if name in ("gpt-oss-full", "per-expert-w"):  # as bfloat16, which changes no value
            weights = load_file(folder / "adapter_model.safetensors")
            save_file({k: v.to(torch.bfloat16) for k, v in weights.items()}, folder / "adapter_model.safetensors")
        config = json.loads((folder / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = None
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=False) + "\n")


if __name__ == "__main__":
    main()
