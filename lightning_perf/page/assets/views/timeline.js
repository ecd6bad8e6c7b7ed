import { missing } from "../parts.js";

export const timeline = { id: "timeline", title: "Timeline", kinds: ["run", "trace"], render: () => missing("Not here yet.") };
