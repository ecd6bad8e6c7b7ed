import { missing } from "../parts.js";

export const modules = { id: "modules", title: "Modules", kinds: ["run", "trace"], render: () => missing("Not here yet.") };
