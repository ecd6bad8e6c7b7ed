// The terms of the device's vendor.

const NVIDIA = { cores: "Tensor Cores", unit: "SM", blocks: "Blocks/SM" };
const AMD = { cores: "Matrix Cores (MFMA)", unit: "CU", blocks: "Workgroups/CU" };

/** The vendor's names for matrix units and multiprocessors. */
export function units(rank) {
  return isAmd(rank) ? AMD : NVIDIA;
}

/** Whether the recording is from AMD's devices. */
export function isAmd({ metadata }) {
  return Boolean(metadata.is_hip) || metadata.devices.some((device) => /AMD|Radeon|Instinct/.test(device.name ?? ""));
}
