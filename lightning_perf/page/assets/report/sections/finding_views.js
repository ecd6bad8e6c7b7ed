// The view with the figures behind each finding.

const TITLES = {
  timeline: "the timeline",
  operators: "the operators",
  kernels: "the kernels",
  launches: "launches and idle time",
  memory: "the memory",
  distributed: "the ranks",
  precision: "the precision",
  overview: "the step times",
};

const VIEWS = {
  allocator: "memory",
  "autocast-tax": "precision",
  "channels-last": "kernels",
  "cold-start": "timeline",
  "cpu-bf16": "operators",
  "cpu-channels-last": "operators",
  "cpu-overhead": "operators",
  "cpu-page-faults": "timeline",
  "cpu-pauses": "timeline",
  "cpu-threads": "operators",
  "cudnn-benchmark": "kernels",
  "data-parallel": "distributed",
  "exposed-communication": "distributed",
  "half-precision": "precision",
  "host-work": "timeline",
  "input-bound": "timeline",
  "launch-bound": "launches",
  "memory-full": "memory",
  "memory-spare": "memory",
  "pageable-copies": "kernels",
  "periodic-steps": "overview",
  "queued-stalls": "launches",
  "rank-imbalance": "distributed",
  "small-kernels": "kernels",
  "stop-flags": "timeline",
  "sync-points": "launches",
  "tensor-cores": "kernels",
  "tf32-off": "kernels",
  "unfused-optimizer": "kernels",
};

/** The view of a rule: {title, state}, or null for a rule without one. */
export function viewOf(kind) {
  const view = VIEWS[kind];
  return view ? { title: TITLES[view], state: { view } } : null;
}
