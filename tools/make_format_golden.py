#!/usr/bin/env python3
"""Writes tests/data/formats-golden.json.xz: small tensors in every quantized layout, and the float32
values to which the libraries that publish such files decode them (compressed-tensors, NVIDIA ModelOpt, torch).

Needs torch, compressed-tensors and nvidia-modelopt. Every E4M3 code but NaN, every pair of E2M1 codes
in a byte, every positive E4M3 scale, E8M0 scales from 0 on, scales of 0, subnormal and large ones.

Usage: make_format_golden.py OUT
"""

import json
import lzma
import sys

import torch
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize
from modelopt.torch.quantization.qtensor import (
    FP8QTensor,
    MXFP4QTensor,
    MXFP8QTensor,
    NVFP4QTensor,
)

DTYPES = {
    torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
}


def hexed(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes().hex()


def e4m3_codes(rows, cols):
    """All 256 codes in turn, NaN replaced by the largest."""
    codes = torch.arange(rows * cols, dtype=torch.int64).mul(37).remainder(256).to(torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0x7E
    return codes.reshape(rows, cols).view(torch.float8_e4m3fn)


def e2m1_bytes(rows, cols):
    return (
        torch.arange(rows * cols // 2, dtype=torch.int64)
        .mul(37)
        .remainder(256)
        .to(torch.uint8)
        .reshape(rows, cols // 2)
    )


def case(name, format_name, rows, cols, tensors, values, checked=None):
    checked = list(range(rows)) if checked is None else checked
    assert values.dtype == torch.float32 and values.shape == (rows, cols), (values.dtype, values.shape)
    assert torch.isfinite(values).all(), name
    return {
        "name": name,
        "format": format_name,
        "rows": rows,
        "cols": cols,
        "tensors": [
            {"part": part, "dtype": DTYPES[t.dtype], "shape": list(t.shape), "bytes": hexed(t)}
            for part, t in tensors.items()
        ],
        "checked": checked,
        "values": hexed(values[checked]),
    }


def fp8_tensor(scale):
    codes = e4m3_codes(4, 64)
    weight_scale = torch.tensor(scale)
    values = FP8QTensor(codes.shape, torch.float32, codes).dequantize(
        torch.float32, scale=weight_scale
    )
    tensors = {"weight": codes, "weight_scale": weight_scale, "input_scale": torch.tensor(0.25)}
    return case(f"fp8 per tensor, scale {scale}", "fp8-tensor", 4, 64, tensors, values)


def fp8_channel(dtype):
    codes = e4m3_codes(6, 48)
    scale = torch.tensor([[0.0], [1.5], [2.0**-126], [1e30], [3.3e-5], [0.0719]]).to(dtype)
    args = QuantizationArgs(num_bits=8, type="float", strategy="channel", symmetric=True)
    values = dequantize(codes, scale.float(), args=args, dtype=torch.float32)
    tensors = {"weight": codes, "weight_scale": scale}
    return case(f"fp8 per channel, {dtype}", "fp8-channel", 6, 48, tensors, values)


def fp8_block(part, dtype):
    rows, cols = 130, 136
    codes = e4m3_codes(rows, cols)
    scale = torch.tensor([[0.0123, 0.0], [7e-4, 1e-41]]).to(dtype)
    args = QuantizationArgs(
        num_bits=8, type="float", strategy="block", block_structure=[128, 128], symmetric=True
    )
    values = dequantize(codes, scale.float(), args=args, dtype=torch.float32)
    tensors = {"weight": codes, part: scale}
    checked = [0, 127, 128, 129]
    return case(f"fp8 blocks, {part} {dtype}", "fp8-block", rows, cols, tensors, values, checked)


def mxfp8():
    codes = e4m3_codes(4, 64)
    scale = torch.tensor([[0, 1], [127, 128], [100, 246], [60, 200]], dtype=torch.uint8)
    values = MXFP8QTensor(codes.shape, torch.float32, codes).dequantize(torch.float32, scale=scale)
    return case("mxfp8", "mxfp8", 4, 64, {"weight": codes, "weight_scale": scale}, values)


def mxfp4(part):
    codes = e2m1_bytes(8, 64)
    scale = torch.tensor([0, 1, 2, 60, 100, 118, 119, 120, 121, 126, 127, 128, 129, 140, 200, 252])
    scale = scale.to(torch.uint8).reshape(8, 2)
    values = MXFP4QTensor(torch.Size((8, 64)), torch.float32, codes).dequantize(
        torch.float32, scale=scale.reshape(-1, 1), block_sizes={-1: 32}
    )
    tensors = {part: codes, "weight_scale": scale}
    return case(f"mxfp4, {part}", "mxfp4", 8, 64, tensors, values.reshape(8, 64))


def nvfp4_scales(rows, groups):
    codes = torch.arange(rows * groups, dtype=torch.int64).remainder(127).to(torch.uint8)
    return codes.reshape(rows, groups).view(torch.float8_e4m3fn)


def nvfp4_modelopt(global_scale):
    rows, cols = 32, 64
    codes, scale = e2m1_bytes(rows, cols), nvfp4_scales(rows, cols // 16)
    double_scale = torch.tensor(global_scale)
    values = NVFP4QTensor(torch.Size((rows, cols)), torch.float32, codes).dequantize(
        torch.float32, scale=scale, double_scale=double_scale, block_sizes={-1: 16}
    )
    tensors = {
        "weight": codes,
        "weight_scale": scale,
        "weight_scale_2": double_scale,
        "input_scale": torch.tensor(0.01),
    }
    return case(f"nvfp4 ModelOpt, {global_scale}", "nvfp4", rows, cols, tensors, values)


def nvfp4_compressed_tensors(global_scale):
    rows, cols = 32, 64
    codes, scale = e2m1_bytes(rows, cols), nvfp4_scales(rows, cols // 16)
    divisor = torch.tensor([global_scale])
    args = QuantizationArgs(
        num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True
    )
    unpacked = unpack_fp4_from_uint8(codes, rows, cols, dtype=torch.float32)
    values = dequantize(
        unpacked, scale.float(), args=args, dtype=torch.float32, global_scale=divisor
    )
    tensors = {
        "weight_packed": codes,
        "weight_scale": scale,
        "weight_global_scale": divisor,
        "input_global_scale": torch.tensor([4.0]),
    }
    name = f"nvfp4 compressed-tensors, {global_scale}"
    return case(name, "nvfp4-divide", rows, cols, tensors, values)


def main():
    cases = [
        fp8_tensor(0.0123),
        fp8_tensor(1e-41),
        fp8_tensor(7e35),
        fp8_channel(torch.float32),
        fp8_channel(torch.bfloat16),
        fp8_block("weight_scale_inv", torch.float32),
        fp8_block("weight_scale_inv", torch.bfloat16),
        fp8_block("weight_scale", torch.float32),
        mxfp8(),
        mxfp4("weight_packed"),
        mxfp4("weight"),
        nvfp4_modelopt(0.000371),
        nvfp4_compressed_tensors(2437.0),
    ]
    with lzma.open(sys.argv[1], "wt") as file:
        file.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


if __name__ == "__main__":
    main()
