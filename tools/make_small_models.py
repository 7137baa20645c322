#!/usr/bin/env python3
"""Makes the small seeded models of tests/data/models and their references: Qwen3-MoE, OLMoE, Mixtral, Qwen3.5-MoE and
Nemotron-H as Transformers builds them, PEFT adapters on attention, router and experts, or on everything, and log-probabilities of a float32 forward of
the stored weights. The first three also quantized, as NAME-FORMAT, with the same adapters (NAME/adapters).
usage: tools/make_small_models.py OUT   (pip install torch transformers peft safetensors compressed-tensors)"""
import json
import lzma
import pathlib
import re
import shutil
import sys
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (MixtralConfig, MixtralForCausalLM, NemotronHConfig, NemotronHForCausalLM, OlmoeConfig,
                          OlmoeForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM)

VOCAB, HIDDEN, LAYERS, EXPERTS, TOP_K, INNER = 320, 64, 2, 6, 2, 48
STEPS = 8  # tokens of an answer

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
# Such that few tokens have two experts within rounding of each other.
SEEDS = {"qwen3_moe": 110, "olmoe": 200, "mixtral": 350, "qwen3_5_moe": 560, "nemotron_h": 600}
# Loud enough that a seam, a norm or a router that is left out shows.
ADAPTERS = {
    "attention": dict(target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], r=4, lora_alpha=8),
    "experts": dict(target_modules=[], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"], r=3, lora_alpha=6),
    "all": dict(target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
                target_parameters=["mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"], r=2, lora_alpha=4,
                use_rslora=True),
}


# Hybrid models, with every linear that they may have adapted at once; models/ has trained ones.
HYBRID = dict(vocab_size=40, hidden_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=8, num_experts_per_tok=2,
              max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=None, tie_word_embeddings=False)
HYBRIDS = {
    "qwen3_5_moe": (Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig(
        **HYBRID, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=6,
        linear_conv_kernel_dim=4, num_experts=EXPERTS, moe_intermediate_size=16, shared_expert_intermediate_size=12,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}), dict(
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj",
                            "shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj", "shared_expert_gate"],
            target_parameters=["mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"])),
    "nemotron_h": (NemotronHForCausalLM, NemotronHConfig(
        **HYBRID, mamba_num_heads=4, mamba_head_dim=6, n_groups=2, ssm_state_size=8, conv_kernel=4, n_routed_experts=EXPERTS,
        moe_intermediate_size=16, moe_shared_expert_intermediate_size=20, moe_latent_size=8, n_group=3, topk_group=2,
        routed_scaling_factor=1.5, use_mamba_kernels=False,
        layers_block_type=["linear_attention", "moe", "full_attention", "linear_attention"]), dict(
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "in_proj", "fc1_latent_proj", "fc2_latent_proj",
                            "shared_experts.up_proj", "shared_experts.down_proj"],  # PEFT refuses out_proj
            target_parameters=["mixer.gate.weight", "mixer.experts.up_proj", "mixer.experts.down_proj"])),
}


def randomize(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        if name.endswith(("A_log", "dt_bias")):
            value = -0.5 + 0.5 * torch.randn(parameter.shape, generator=generator)
        elif parameter.dim() == 1:
            value = 1 + 0.2 * torch.randn(parameter.shape, generator=generator)
        else:
            fan_in = parameter.shape[-1]
            # A loud router: rounding seldom changes the choice of experts.
            gain = 6.0 if name.endswith("gate.weight") else 0.6 if name.startswith("lm_head") else 1.5
            value = gain / fan_in**0.5 * torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(value.to(torch.bfloat16).float())
    for name, buffer in sorted(model.named_buffers()):
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))


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
    chosen = [round(float(lp[i, ids[i + 1]]), 5) for i in range(len(ids) - 1)]
    return {"prompt_ids": prompt, "output_ids": ids[n:], "prompt_logprobs": chosen[:n - 1], "token_logprobs": chosen[n - 1:],
            "top5_ids": top.indices.tolist(), "top5_logprobs": [[round(v, 5) for v in row] for row in top.values.tolist()]}


def write_reference(folder, cases):
    text = json.dumps({"cases": cases}, separators=(",", ":"))
    (folder / "reference.json.xz").write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


E4M3_MAX = 448.0


def fp8_block(weight):
    """128x128 blocks as Transformers writes them: tensors by suffix, and the values that they stand for."""
    codes, scales = torch.empty_like(weight, dtype=torch.float8_e4m3fn), []
    decoded = torch.empty_like(weight)
    for row in range(0, weight.shape[0], 128):
        scales.append([])
        for col in range(0, weight.shape[1], 128):
            at = (slice(row, row + 128), slice(col, col + 128))
            scale = weight[at].abs().max() / E4M3_MAX
            codes[at] = (weight[at] / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
            decoded[at] = codes[at].float() * scale
            scales[-1].append(scale)
    return {"weight": codes, "weight_scale_inv": torch.tensor(scales)}, decoded


def fp8_channel(weight):
    """One scale a row, as compressed-tensors' FP8_DYNAMIC."""
    scale = weight.abs().amax(1, keepdim=True) / E4M3_MAX
    codes = (weight / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale}, codes.float() * scale


def nvfp4(weight):
    """compressed-tensors' nvfp4-pack-quantized: groups of 16, E4M3 scales, a global scale that divides."""
    from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    overall = E4M3_MAX * 6 / weight.abs().max()
    groups = weight.reshape(weight.shape[0], -1, 16)
    scale = (overall * groups.abs().amax(2) / 6).to(torch.float8_e4m3fn)
    step = scale.float().unsqueeze(2) / overall
    values = groups / step
    nearest = levels[(values.abs().unsqueeze(3) - levels).abs().argmin(3)] * values.sign()
    packed = pack_fp4_to_uint8(nearest.reshape(weight.shape))
    return ({"weight_packed": packed, "weight_scale": scale, "weight_global_scale": overall.reshape(1)},
            (nearest * step).reshape(weight.shape))


def compressed(weights, activations, **more):
    return {"quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*mlp.gate$", "re:.*block_sparse_moe.gate$"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations}}, **more}


QUANTIZED = {
    "qwen3_moe": ("fp8", fp8_block, {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                     "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"] +
                                     [f"model.layers.{i}.mlp.gate" for i in range(LAYERS)]}),
    "olmoe": ("fp8-dynamic", fp8_channel, compressed(
        {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
        {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}, format="float-quantized")),
    "mixtral": ("nvfp4", nvfp4, compressed(
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True, "dynamic": False},
        None, format="nvfp4-pack-quantized")),
}
LINEAR = re.compile(r"(self_attn\.[qkvo]_proj|experts\.\d+\.\w+)\.weight$")


def quantize(folder, target, encode, config, make):
    """Writes the quantized form of a folder's model; returns a Transformers model of the values that it stands for."""
    target.mkdir(parents=True, exist_ok=True)
    stored, decoded = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not LINEAR.search(name):
            stored[name] = decoded[name] = tensor
            continue
        parts, decoded[name] = encode(tensor.float())
        for suffix, part in parts.items():
            stored[name.removesuffix("weight") + suffix] = part.contiguous()
    save_file(stored, target / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**settings, "quantization_config": config}, indent=2) + "\n")
    with tempfile.TemporaryDirectory() as plain:
        shutil.copy(folder / "config.json", plain)
        save_file({n: t.float().contiguous() for n, t in decoded.items()}, pathlib.Path(plain) / "model.safetensors",
                  metadata={"format": "pt"})
        return make.from_pretrained(plain, dtype=torch.float32, attn_implementation="eager").eval()


def write_quantized(out, name, make, prompts):
    suffix, encode, config = QUANTIZED[name]
    folder, target = out / name, out / f"{name}-{suffix}"
    cases = {"base": [case(quantize(folder, target, encode, config, make), p, STEPS) for p in prompts]}
    for adapter in ADAPTERS:
        peft = PeftModel.from_pretrained(quantize(folder, target, encode, config, make), folder / "adapters" / adapter).eval()
        cases[adapter] = [case(peft, p, STEPS) for p in prompts]
    write_reference(target, cases)


def write(out, name, make, config, seed, adapters=ADAPTERS, quantized=True):
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
    prompts = [torch.randint(3, config.vocab_size, (n,), generator=generator).tolist() for n in (1, 5, 19, 40)]
    cases = {"base": [case(model, p, STEPS) for p in prompts]}
    for index, (adapter, settings) in enumerate(adapters.items()):
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
        cases[adapter] = [case(peft, p, STEPS) for p in prompts]
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_reference(folder, cases)
    if quantized:
        write_quantized(out, name, make, prompts)


if __name__ == "__main__":
    for name, (make, config) in MODELS.items():
        write(pathlib.Path(sys.argv[1]), name, make, config, SEEDS[name])
    for name, (make, config, settings) in HYBRIDS.items():
        write(pathlib.Path(sys.argv[1]), name, make, config, SEEDS[name], {"all": dict(settings, r=2, lora_alpha=4)},
              quantized=False)
