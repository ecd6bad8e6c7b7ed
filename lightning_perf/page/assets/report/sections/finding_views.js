// The view with the figures behind each finding.

const TITLES = {
  timeline: "the timeline",
  operators: "the operators",
  kernels: "the kernels",
  launches: "launches and idle time",
  memory: "the memory",
  distributed: "the ranks",
  precision: "the precision",
  overview: "the overview",
};

const VIEWS = {
  activations: "memory",
  allocator: "memory",
  "attention-math": "overview",
  "autocast-tax": "precision",
  "channels-last": "kernels",
  "cold-start": "timeline",
  "compile-cost": "overview",
  "cpu-bf16": "operators",
  "cpu-channels-last": "operators",
  "cpu-overhead": "operators",
  "cpu-page-faults": "timeline",
  "cpu-pauses": "timeline",
  "cpu-threads": "operators",
  "cudagraph-skips": "overview",
  "cudnn-benchmark": "kernels",
  "data-parallel": "distributed",
  "debug-settings": "timeline",
  "exposed-communication": "distributed",
  fragmentation: "memory",
  "graph-breaks": "overview",
  "half-precision": "precision",
  "host-work": "timeline",
  "input-bound": "timeline",
  "launch-bound": "launches",
  leak: "memory",
  "long-validation": "overview",
  "memory-full": "memory",
  "memory-spare": "memory",
  "optimizer-state": "memory",
  padding: "overview",
  "pageable-copies": "kernels",
  "periodic-steps": "overview",
  "queued-stalls": "launches",
  "rank-imbalance": "distributed",
  recompiles: "overview",
  recompute: "overview",
  "slow-callback": "overview",
  "slow-checkpoints": "overview",
  "slow-first-step": "overview",
  "slow-logger": "overview",
  "small-kernels": "kernels",
  "stop-flags": "timeline",
  "sync-points": "launches",
  "tensor-cores": "kernels",
  "tf32-off": "kernels",
  "unfused-optimizer": "kernels",
  "worker-restarts": "overview",
};

/** The view of a rule: {title, state}, or null for a rule without one. */
export function viewOf(kind) {
  const view = VIEWS[kind];
  return view ? { title: TITLES[view], state: { view } } : null;
}
