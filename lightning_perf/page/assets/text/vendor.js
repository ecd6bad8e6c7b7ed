// The terms of the device's vendor.

// Architectures by the names of AMD's devices (AMD ROCm documentation, "Accelerator and GPU hardware specifications").
const GFX = [
  [/MI3[02]\d/, "gfx942"],
  [/MI35\d/, "gfx950"],
  [/MI2\d\d/, "gfx90a"],
  [/MI100/, "gfx908"],
];

const NVIDIA = {
  cores: "Tensor Cores",
  products: "Tensor Cores",
  unit: "SM",
  blocks: "Blocks/SM",
  architecture: ({ compute_major: major, compute_minor: minor }) =>
    major == null ? null : `compute capability ${major}.${minor ?? 0}`,
};
const AMD = {
  cores: "Matrix Cores (MFMA)",
  products: "MFMA",
  unit: "CU",
  blocks: "Workgroups/CU",
  architecture: ({ name, compute_major: major, compute_minor: minor }) =>
    GFX.find(([pattern]) => pattern.test(name ?? ""))?.[1] ?? (major == null ? null : `gfx${major}${minor ?? ""}x`),
};

/** The vendor's names: of matrix units (`cores`), multiprocessors (`unit`) and a device's `architecture(device)`. */
export function units(rank) {
  return isAmd(rank) ? AMD : NVIDIA;
}

/** Whether the recording is from AMD's devices. */
export function isAmd({ metadata }) {
  return Boolean(metadata.is_hip) || metadata.devices.some((device) => /AMD|Radeon|Instinct/.test(device.name ?? ""));
}
