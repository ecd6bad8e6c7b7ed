// The overview of all steps with a brush: the part of the time that the lanes below show.

import { h } from "../core/dom.js";
import { clampRange } from "./axis.js";

const EDGE_PX = 12; // at the ends of the brush, which resize it

/** The overview: {element, canvas, show(range)}. `change(range)` is called while the reader moves the brush. */
export function makeBrush(least, change) {
  const canvas = h("canvas", { class: "tl-lane tl-overview" });
  const window_ = h("div", { class: "tl-brush" });
  const element = h("div", { class: "tl-overview-box", "aria-hidden": "true" }, canvas, window_);
  let range = { from: 0, to: 1 };
  let drag = null; // {kind: "move", "from", "to" or "new", place, range}

  const placeOf = (event) => {
    const box = canvas.getBoundingClientRect();
    return Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
  };

  element.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    const place = placeOf(event);
    const edge = EDGE_PX / canvas.clientWidth;
    const whole = range.to - range.from > 0.999;
    let kind = "new";
    if (!whole && Math.abs(place - range.from) < edge) kind = "from";
    else if (!whole && Math.abs(place - range.to) < edge) kind = "to";
    else if (!whole && place > range.from && place < range.to) kind = "move";
    drag = { kind, place, range };
    element.setPointerCapture(event.pointerId);
  });
  element.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const place = placeOf(event);
    const moved = place - drag.place;
    if (drag.kind === "move") change(clampRange({ from: drag.range.from + moved, to: drag.range.to + moved }, least));
    else if (drag.kind === "new") {
      if (Math.abs(moved) * canvas.clientWidth > 3) change(ordered(drag.place, place));
    } else change(ordered(drag.kind === "from" ? drag.range.to : drag.range.from, place));
  });
  element.addEventListener("pointerup", (event) => {
    if (drag?.kind === "new" && Math.abs(placeOf(event) - drag.place) * canvas.clientWidth <= 3) {
      const half = (range.to - range.from) / 2; // a click moves the middle there
      change(clampRange({ from: drag.place - half, to: drag.place + half }, least));
    }
    drag = null;
  });
  element.addEventListener("pointercancel", () => (drag = null));

  const ordered = (a, b) => clampRange({ from: Math.min(a, b), to: Math.max(a, b) }, least);
  return {
    element,
    canvas,
    show(next) {
      range = next;
      window_.style.setProperty("left", `${100 * range.from}%`);
      window_.style.setProperty("width", `${100 * (range.to - range.from)}%`);
    },
  };
}
