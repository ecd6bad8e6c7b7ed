import { missing } from "../parts.js";

export const distributed = { id: "distributed", title: "Distributed", kinds: ["run", "trace"], render: () => missing("Not here yet.") };
