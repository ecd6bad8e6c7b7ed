import { missing } from "../parts.js";

export const launches = { id: "launches", title: "Launches", kinds: ["run", "trace"], render: () => missing("Not here yet.") };
