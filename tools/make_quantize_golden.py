#!/usr/bin/env python3
"""Writes tests/data/quantize-golden.json.xz: small float32 matrices, and the codes and scales to which the
tools that publish quantized checkpoints turn them (compressed-tensors, NVIDIA ModelOpt, Transformers, torchao).

Needs torch, compressed-tensors, nvidia-modelopt, transformers and torchao. The matrices hold random values of
several magnitudes, zeros, blocks of zeros, negative zero, every tie of E2M1 and many of E4M3, outliers, values
around each power of two that a scale may be, tiny and huge values, and partial blocks.

Usage: make_quantize_golden.py OUT
"""

import json
import lzma
import sys
from types import SimpleNamespace

import torch
from compressed_tensors.compressors.mx_utils import compress_mx_scale
from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP4QTensor, MXFP8QTensor, NVFP4QTensor
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_mx
from transformers.integrations.finegrained_fp8 import Fp8Quantize


def hexed(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes().hex()


# The inputs.


def random(rows, cols, seed, scale=1.0):
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed)) * scale


def ties():
    """Blocks whose largest value makes the scale a power of two, and all midpoints between codes."""
    middles = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    near = [m * (1 + d) for m in middles for d in (0, 2**-23, -(2**-23))]
    values = torch.tensor([0.0, -0.0, 6.0, *near, *[-n for n in near]])
    rows = []
    for exponent in (-20, -3, 0, 1, 7):
        row = torch.zeros(64)
        row[: len(values)] = values * 2.0**exponent
        row[32] = row[48] = 6.0 * 2.0**exponent
        row[-1] = -6.0 * 2.0**exponent
        rows.append(row)
    return torch.stack(rows)


def e4m3_ties():
    """All E4M3 values and the midpoints between them, 448 among each 32."""
    values = torch.arange(0, 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (values[1:] + values[:-1]) / 2
    both = torch.cat([values, middles, -values, -middles])
    groups = [torch.cat([torch.tensor([448.0]), part]) for part in both.split(31)]
    groups[-1] = torch.nn.functional.pad(groups[-1], (0, 32 - len(groups[-1])))
    groups += [torch.zeros(32)] * (-len(groups) % 4)
    return torch.stack(groups).reshape(-1, 128)


def odd():
    rows = random(8, 64, 5)
    rows[0] = 0
    rows[1, :32] = 0
    rows[2] = -0.0
    rows[3, 5] = 1e5  # an outlier
    rows[4] *= 1e-4
    rows[5, 16:32] = 0
    rows[6] *= torch.linspace(1, 2, 64)
    rows[7, 1::2] = 0
    return rows


def powers(mantissas):
    """Largest values on both sides of each boundary of a scale."""
    rows = []
    for exponent in (-100, -40, -8, -1, 0, 5, 90):
        for mantissa in mantissas:
            row = random(1, 32, exponent + 200)[0]
            row = row / row.abs().max()
            row[3] = mantissa
            rows.append(row * 2.0**exponent)
    return torch.stack(rows)


INPUTS = {
    "random": random(16, 128, 1),
    "small": random(16, 128, 2, 0.02).to(torch.bfloat16).float(),
    "ties": ties(),
    "e4m3 ties": e4m3_ties(),
    "odd": odd(),
    "powers": powers((1.0, 1.25, 1.49, 1.5, 1.51, 1.74, 1.75, 1.76, 1.99)),
    "near powers": powers((1.4999999, 1.5000001, 1.7499999, 1.7500001, 1.9999999)),
    "large": random(4, 64, 3, 1e30),
    "tiny": random(4, 64, 4, 1e-30),
    "zeros": torch.zeros(4, 64),
}


def sparse(rows, cols, seed):
    """Mostly zeros, so that the file stays small."""
    return random(rows, cols, seed) * (random(rows, cols, seed + 100) > 1.5)


# Blocks of 128 x 128 that end early.
EDGES = {"edges": sparse(130, 136, 6), "narrow": random(3, 200, 8)}
WHOLE = {"blocks": sparse(256, 256, 9)}
WHOLE["blocks"][128:, 128:] = 0


# The tools. Each gives the tensors that it writes.


def scheme(name):
    return preset_name_to_scheme(name, ["Linear"]).weights


def qparams(args, low, high, global_scale=None):
    return calculate_qparams(low, high, args, global_scale=global_scale)


def compressed_tensors_groups(w, name):
    args = scheme(name)
    groups = w.unflatten(-1, (-1, args.group_size))
    global_scale = None
    if name == "NVFP4A16":
        global_scale = generate_gparam(w.min().reshape(1), w.max().reshape(1))
    scale, zero = qparams(args, groups.amin(-1), groups.amax(-1), global_scale)
    codes = quantize(w, scale, None, args, global_scale=global_scale)
    out = {}
    if args.num_bits == 4:
        out["weight_packed"] = pack_fp4_to_uint8(codes)
    else:
        out["weight"] = codes.to(torch.float8_e4m3fn)
    if global_scale is None:
        out["weight_scale"] = compress_mx_scale(scale, torch.uint8)
    else:
        out["weight_scale"] = scale.to(torch.float8_e4m3fn)
        out["weight_global_scale"] = global_scale
    return out


def compressed_tensors_fp8(w, name):
    args = scheme("FP8_BLOCK" if name == "block" else "FP8_DYNAMIC")
    if name == "tensor":
        args = args.model_copy(update={"strategy": "tensor"})
        low, high = w.min().reshape(1), w.max().reshape(1)
    elif name == "channel":
        low, high = w.amin(-1, keepdim=True), w.amax(-1, keepdim=True)
    else:
        padded = torch.nn.functional.pad(w, (0, -w.shape[1] % 128, 0, -w.shape[0] % 128))
        blocks = padded.unflatten(1, (-1, 128)).unflatten(0, (-1, 128))
        low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
    scale, zero = qparams(args, low, high)
    codes = quantize(w, scale, None, args, dtype=torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale}


def modelopt_mxfp4(w):
    codes, scale = MXFP4QTensor.quantize(w.clone(), 32)
    return {"weight": codes._quantized_data, "weight_scale": scale.reshape(w.shape[0], -1)}


def modelopt_mxfp8(w):
    codes, scale = MXFP8QTensor.quantize(w.clone())
    return {"weight": codes._quantized_data, "weight_scale": scale}


def modelopt_nvfp4(w):
    codes, scale, scale_2 = NVFP4QTensor.quantize(w.clone(), 16)
    return {"weight": codes._quantized_data, "weight_scale": scale, "weight_scale_2": scale_2}


def modelopt_fp8(w):
    codes, scale = FP8QTensor.quantize(w.clone())
    return {"weight": codes._quantized_data, "weight_scale": scale.reshape(())}


def transformers_blocks(w):
    config = SimpleNamespace(weight_block_size=(128, 128), scale_fmt="float")
    quantizer = SimpleNamespace(quantization_config=config)
    return Fp8Quantize(quantizer).convert({"weight": w})


def gpt_oss(w):
    # Transformers calls a kernel from the hub for this; torchao's round-up mode is the same rule.
    scale, codes = to_mx(w, torch.float4_e2m1fn_x2, 32, ScaleCalculationMode.RCEIL)
    return {
        "blocks": codes.reshape(w.shape[0], -1, 16),
        "scales": scale.view(torch.uint8).reshape(w.shape[0], -1),
    }


def case(name, format_name, recipe, w, tensors):
    for part, tensor in tensors.items():
        if tensor.is_floating_point():
            assert torch.isfinite(tensor.float()).all(), (name, format_name, recipe, part)
    return {
        "input": name,
        "format": format_name,
        "recipe": recipe,
        "tensors": {part: hexed(tensor) for part, tensor in tensors.items()},
    }


def main():
    cases = []

    def add(format_name, recipe, tool, inputs, skip=()):
        for name, w in inputs.items():
            if name not in skip:
                cases.append(case(name, format_name, recipe, w, tool(w)))

    ct = "compressed-tensors"
    # The kernel looks at bits, so that a hair over a power of two is over it; torchao's logarithm is rounded.
    add("mxfp4", "gpt-oss", gpt_oss, INPUTS, skip=("near powers",))
    add("mxfp4", "modelopt", modelopt_mxfp4, INPUTS)
    add("mxfp4", ct, lambda w: compressed_tensors_groups(w, "MXFP4A16"), INPUTS)
    add("mxfp8", "modelopt", modelopt_mxfp8, INPUTS)
    add("mxfp8", ct, lambda w: compressed_tensors_groups(w, "MXFP8A16"), INPUTS)
    # ModelOpt divides zero by zero for a tensor of zeros.
    add("nvfp4", "modelopt", modelopt_nvfp4, INPUTS, skip=("zeros",))
    add("nvfp4", ct, lambda w: compressed_tensors_groups(w, "NVFP4A16"), INPUTS)
    add("fp8-tensor", "modelopt", modelopt_fp8, INPUTS | EDGES, skip=("zeros",))
    add("fp8-tensor", ct, lambda w: compressed_tensors_fp8(w, "tensor"), INPUTS | EDGES)
    add("fp8-channel", ct, lambda w: compressed_tensors_fp8(w, "channel"), INPUTS | EDGES)
    add("fp8-block", ct, lambda w: compressed_tensors_fp8(w, "block"), INPUTS | EDGES | WHOLE)
    # Transformers leaves matrices alone that are no multiple of the block.
    add("fp8-block", "transformers", transformers_blocks, WHOLE)
    with lzma.open(sys.argv[1], "wt", preset=9) as file:
        inputs = {
            name: {"rows": w.shape[0], "cols": w.shape[1], "values": hexed(w)}
            for name, w in (INPUTS | EDGES | WHOLE).items()
        }
        json.dump({"inputs": inputs, "cases": cases}, file, indent=0)


if __name__ == "__main__":
    main()
