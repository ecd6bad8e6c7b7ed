import { missing } from "../parts.js";

export const precision = { id: "precision", title: "Precision", kinds: ["run", "trace"], render: () => missing("Not here yet.") };
