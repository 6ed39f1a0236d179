// What is drawn over the rows (the selected event, its partners, a marked range) and above them (overview, axis).
import { duration } from "../../draw/js/format.js";
import { LANE, cssOf, paintRow, stripOf } from "./canvas.js";

export function timelineMarks(state, look, context, top, { size, x, place, rowTop }) {
  const above = top.getContext("2d");
  const overview = stripOf();
  let drawnKey = "";
  const outline = (i, colour, width) => {
    const { x0, x1, y, height } = place(i);
    if (x1 < -4 || x0 > size.width + 4) return;
    const [left, right] = [Math.max(-4, x0), Math.min(size.width + 4, x1)];
    context.lineWidth = width;
    context.strokeStyle = colour;
    context.strokeRect(left, y, Math.max(2, right - left - 1), height);
  };

  // Lines from the selected event to its partners; an invisible partner's line ends at the edge.
  const drawLinks = () => {
    const { theme } = look;
    const clamp = (value, most) => Math.min(most + 24, Math.max(-24, value));
    for (const { from, to } of state.links) {
      const [a, b] = [place(from), place(to)];
      const [x0, x1] = [clamp((Math.max(a.x0, 0) + Math.min(a.x1, size.width)) / 2, size.width), clamp(b.x0 + 1, size.width)];
      const down = b.y >= a.y;
      const [y0, y1] = [clamp(a.y + (down ? a.height : 0), size.height), clamp(b.y + (down ? 0 : b.height), size.height)];
      const bend = Math.max(28, Math.abs(y1 - y0) * 0.5) * (down ? 1 : -1);
      for (const [colour, width] of [[cssOf(theme.bg, 0.8), 4], [cssOf(theme.fg, 0.85), 1.5]]) {
        context.beginPath();
        context.moveTo(x0, y0);
        context.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
        context.lineWidth = width;
        context.strokeStyle = colour;
        context.stroke();
      }
      context.beginPath();
      context.arc(x1, y1, 3, 0, 7);
      context.fillStyle = cssOf(theme.fg);
      context.fill();
      const partner = from === state.selected ? to : from;
      outline(partner, cssOf(theme.fg, 0.8), 1.2);
    }
  };

  const drawLayer = () => {
    if (state.layer < 0) return;
    const { store } = state;
    context.fillStyle = cssOf(look.theme.fg, 0.9);
    let left = 4000;
    for (const lane of look.layout.lanes) {
      if (lane.track?.kind !== "layers") continue;
      for (const row of lane.rows) {
        const y = rowTop(row) - state.scroll + LANE.row - 4;
        if (y < -4 || y > size.height) continue;
        for (let i = store.firstAt(row, state.t0); i < row.last && store.start[i] < state.t1 && left > 0; i += 1) {
          if (store.layer[i] !== state.layer) continue;
          const from = Math.max(0, x(store.start[i]));
          context.fillRect(from, y, Math.max(2, Math.min(size.width, x(store.end(i))) - from - 1), 3);
          left -= 1;
        }
      }
    }
  };

  const drawInterval = () => {
    if (!state.interval) return;
    const [a, b] = state.interval.map((time) => Math.min(size.width + 2, Math.max(-2, x(time))));
    context.fillStyle = cssOf(look.theme.fg, 0.1);
    context.fillRect(a, 0, b - a, size.height);
    context.fillStyle = cssOf(look.theme.fg, 0.7);
    for (const at of [a, b]) context.fillRect(at - 0.5, 0, 1, size.height);
  };

  // The selected event, the one under the pointer, and others of that name.
  const drawOver = () => {
    const { theme } = look;
    drawLayer();
    drawInterval();
    drawLinks();
    if (state.hovered >= 0 && state.hovered !== state.selected) outline(state.hovered, cssOf(theme.fg, 0.7), 1);
    if (state.selected >= 0) {
      outline(state.selected, cssOf(theme.bg), 4);
      outline(state.selected, cssOf(theme.fg), 2);
    }
    if (!state.pointer) return;
    context.fillStyle = cssOf(theme.fg, 0.3);
    context.fillRect(Math.round(state.pointer.x), 0, 1, size.height);
  };

  const drawTop = (marks) => {
    const { store } = state;
    const { theme, palette, layout } = look;
    const { gutter, width, ratio } = size;
    const { start_ns: begin, end_ns: end } = store.header;
    above.setTransform(ratio, 0, 0, ratio, 0, 0);
    above.clearRect(0, 0, gutter + width, LANE.axis + LANE.overview);
    const across = Math.round(width * ratio);
    const key = `${store.total} ${state.query} ${across} ${look.version}`;
    const heads = layout.lanes.filter((lane) => lane.track?.head).map((lane) => lane.track.head);
    if (key !== drawnKey) {
      drawnKey = key;
      const pixels = overview.pixels(across, Math.max(1, heads.length));
      heads.forEach((row, r) => paintRow(store, row, begin, end, across, pixels, r * across, palette, Infinity, null));
      overview.put();
    }
    const high = LANE.overview - 6;
    above.fillStyle = cssOf(theme.wash);
    above.fillRect(gutter, 0, width, high);
    above.imageSmoothingEnabled = heads.length > 16;
    above.drawImage(overview.canvas, 0, 0, across, Math.max(1, heads.length), gutter, 1, width, high - 2);
    const at = (time) => gutter + ((time - begin) / (end - begin)) * width;
    let [from, to] = [Math.max(gutter, at(state.t0)), Math.min(gutter + width, at(state.t1))];
    if (to - from < 4) [from, to] = [(from + to) / 2 - 2, (from + to) / 2 + 2];
    above.fillStyle = cssOf(theme.bg, 0.68);
    above.fillRect(gutter, 0, from - gutter, high);
    above.fillRect(to, 0, gutter + width - to, high);
    above.strokeStyle = cssOf(theme.fg, 0.75);
    above.lineWidth = 1.5;
    above.strokeRect(from + 0.5, 0.75, Math.max(2, to - from - 1), high - 1.5);
    above.fillStyle = cssOf(theme.fg, 0.85);
    for (const edge of [from, to]) above.fillRect(edge - 2, high / 2 - 7, 4, 14);
    above.font = `11px ${theme.family}`;
    above.textBaseline = "middle";
    above.fillStyle = cssOf(theme.quiet);
    above.textAlign = "left";
    above.fillText(`All: ${duration((end - begin) / 1e6)}`, 2, high / 2);
    above.fillText(`Visible: ${duration((Math.min(end, state.t1) - Math.max(begin, state.t0)) / 1e6)}`, 2, LANE.overview + LANE.axis / 2);
    above.textAlign = "center";
    for (const [time, words] of marks) {
      const px = gutter + x(time);
      above.fillStyle = cssOf(theme.fg, 0.35);
      above.fillRect(px, LANE.overview + LANE.axis - 5, 1, 5);
      above.fillStyle = cssOf(theme.quiet);
      const half = above.measureText(words).width / 2;
      if (px - half >= gutter && px + half <= gutter + width) above.fillText(words, px, LANE.overview + LANE.axis / 2 - 2);
    }
    if (state.interval) {
      const [a, b] = state.interval;
      const words = duration((b - a) / 1e6);
      const half = above.measureText(words).width / 2 + 6;
      const middle = Math.min(gutter + width - half, Math.max(gutter + half, gutter + (x(a) + x(b)) / 2));
      above.clearRect(middle - half - 40, LANE.overview, 2 * half + 80, LANE.axis - 5);
      above.fillStyle = cssOf(theme.fg);
      above.fillRect(middle - half, LANE.overview, 2 * half, LANE.axis - 5);
      above.fillStyle = cssOf(theme.bg);
      above.fillText(words, middle, LANE.overview + LANE.axis / 2 - 2);
    }
  };
  return { drawOver, drawTop };
}
