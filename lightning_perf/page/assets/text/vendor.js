// The terms of the device's vendor.

const NVIDIA = { cores: "Tensor Cores", products: "Tensor Cores", blocks: "Blocks/SM" };
const AMD = { cores: "Matrix Cores (MFMA)", products: "MFMA", blocks: "Workgroups/CU" };

/** The vendor's names of matrix units (`cores`) and of blocks on a multiprocessor. */
export function units({ metadata }) {
  const named = metadata.devices.some((device) => /AMD|Radeon|Instinct/.test(device.name ?? ""));
  return metadata.is_hip || named ? AMD : NVIDIA;
}
