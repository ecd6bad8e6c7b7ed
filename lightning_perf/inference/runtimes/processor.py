"""What this machine's processor computes natively."""

from __future__ import annotations

from pathlib import Path

__all__ = ["BF16_FLAGS", "FP16_FLAGS", "cpu_flags"]

CPUINFO = Path("/proc/cpuinfo")

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Flags of processors with bfloat16 products: two of x86, one of Arm (Linux, arch/arm64/kernel/cpuinfo.c)."""

FP16_FLAGS = frozenset({"avx512_fp16", "amx_fp16", "asimdhp"})
"""Flags of processors with float16 products: two of x86, one of Arm."""


def cpu_flags() -> frozenset[str] | None:
    """Extensions of the instruction set as Linux names them, or None where there is no such list."""
    try:
        lines = CPUINFO.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return None
