// The actions of the timeline: every button, key and gesture ends here.
import { LANE } from "./canvas.js";
import { timelineTip } from "./details.js";

const SHORTEST_NS = 20;
const MOST_LINES = 200;

export function timelineActs(state, frame, words, ui) {
  const bounds = () => {
    const { start_ns: begin, end_ns: end } = state.store.header;
    return [begin - 0.015 * (end - begin), end + 0.015 * (end - begin)];
  };
  const act = {
    // Shows a time range, at once or animated over a few frames.
    show(t0, t1, now = false) {
      const [low, high] = bounds();
      const span = Math.min(high - low, Math.max(SHORTEST_NS, t1 - t0));
      const middle = t1 - t0 < SHORTEST_NS ? (t0 + t1) / 2 - span / 2 : t0;
      const from = Math.min(high - span, Math.max(low, middle));
      state.goal = [from, from + span];
      if (now) [state.t0, state.t1, state.goal] = [from, from + span, null];
      ui.redraw();
    },
    zoom(factor, px = frame.size.width / 2) {
      const [a, b] = state.goal ?? [state.t0, state.t1];
      const held = a + (px / frame.size.width) * (b - a);
      const span = Math.max(SHORTEST_NS, (b - a) * factor);
      act.show(held - (px / frame.size.width) * span, held + (1 - px / frame.size.width) * span);
    },
    pan(part) {
      const [a, b] = state.goal ?? [state.t0, state.t1];
      act.show(a + part * (b - a), b + part * (b - a));
    },
    whole: () => act.show(...bounds()),
    zoomTo(i) {
      const room = Math.max(SHORTEST_NS, state.store.duration[i]) * 0.35;
      act.show(state.store.start[i] - room, state.store.end(i) + room);
    },
    focus() {
      if (state.interval) act.show(...state.interval);
      else if (state.selected >= 0) act.zoomTo(state.selected);
      else if (state.hovered >= 0) act.zoomTo(state.hovered);
      else ui.say("Nothing is selected: click an event or press Enter, then F zooms to it.");
    },
    enter() {
      if (state.interval || state.selected >= 0) act.focus();
      else act.choose(act.anyInSight());
    },
    // Where keyboard navigation starts: the longest visible event, of the layers if there are any.
    anyInSight() {
      const { store: now, t0, t1 } = state;
      const rows = [...now.rows].sort((a, b) => (b.track.kind === "layers") - (a.track.kind === "layers"));
      for (const row of rows) {
        const { from, to } = now.inside(row, t0, t1);
        if (to > from) return now.longest(from, to);
      }
      return -1;
    },
    choose(i, bring = false, zoom = false) {
      const { store: now } = state;
      state.selected = i;
      state.interval = null;
      state.layer = i >= 0 ? now.layer[i] : -1;
      state.links = [];
      if (i >= 0) {
        const link = (from, to) => from >= 0 && to >= 0 && state.links.push({ from, to });
        const { layers, nodes } = now.backwardOf(i);
        for (const from of new Set([now.layerAround(i), now.launcher(i), now.launch[i], ...now.forwardOf(i)])) link(from, i);
        for (const to of now.launched(i).events.slice(0, MOST_LINES)) link(i, to);
        for (const to of (layers.length ? layers : nodes).slice(0, MOST_LINES)) link(i, to);
      }
      ui.describe();
      ui.spoken.textContent = i >= 0 ? `${words.brief(i)}, ${words.when(now.start[i])}` : "";
      if (i >= 0 && bring) act.bring(i, zoom);
      ui.redraw();
    },
    // Scrolls to an event, opens its track, and zooms in if it would be too small to see.
    bring(i, zoom) {
      const { store: now } = state;
      const row = now.rowOf(i);
      const lane = ui.layout().laneOf.get(row.track);
      if (lane.folded && row.depth > lane.rows[0].depth) ui.fold(lane);
      const y = frame.rowTop(row);
      if (y < ui.scroller.scrollTop || y + LANE.row > ui.scroller.scrollTop + ui.scroller.clientHeight) ui.scroller.scrollTop = y - ui.scroller.clientHeight / 2;
      state.scroll = ui.scroller.scrollTop;
      const [a, b] = state.goal ?? [state.t0, state.t1];
      const [from, to, span] = [now.start[i], now.end(i), b - a];
      if (zoom || now.duration[i] > span * 1.5 || now.duration[i] < span / frame.size.width / 2) act.zoomTo(i);
      else if (from < a || to > b) act.show((from + to) / 2 - span / 2, (from + to) / 2 + span / 2);
    },
    beside(direction) {
      if (state.selected < 0) return act.pan(0.15 * direction);
      const row = state.store.rowOf(state.selected);
      const to = state.selected + direction;
      return to >= row.first && to < row.last && act.choose(to, true);
    },
    along(direction) {
      if (state.selected < 0) {
        ui.scroller.scrollTop += direction * LANE.row * 2;
        return;
      }
      if (direction < 0) {
        const parent = state.store.parent(state.selected);
        if (parent >= 0) act.choose(parent, true);
      } else {
        const child = state.store.longest(...state.store.children(state.selected));
        if (child >= 0) act.choose(child, true);
      }
    },
    click(point) {
      const found = frame.hit(point.x, point.y);
      act.choose(found?.event ?? -1);
    },
    hover(point, event) {
      state.pointer = point;
      const found = point && frame.hit(point.x, point.y);
      state.hovered = found?.event ?? -1;
      ui.canvas.style.cursor = state.hovered >= 0 ? "pointer" : "default";
      ui.tip.hidden = !(found && (found.event >= 0 || found.bytes != null)) || event?.pointerType === "touch";
      if (!ui.tip.hidden) {
        ui.tip.replaceChildren(...timelineTip(state, words, found));
        const box = ui.shell.getBoundingClientRect();
        const [x, y] = [event.clientX - box.left, event.clientY - box.top];
        const left = x + 16 + ui.tip.offsetWidth > box.width ? Math.max(0, x - ui.tip.offsetWidth - 12) : x + 16;
        ui.tip.style.transform = `translate(${Math.round(left)}px,${Math.round(y + 16)}px)`;
      }
      ui.redraw();
    },
    mark(a, b) {
      if (state.selected >= 0) act.choose(-1);
      state.interval = [a, b];
      ui.describe();
      ui.redraw();
    },
    escape() {
      if (state.selected < 0 && !state.interval) return ui.canvas.blur();
      return act.choose(-1);
    },
    find() {
      ui.search.focus();
      ui.search.select();
    },
    next(direction) {
      const { store: now } = state;
      if (!now.lit) return;
      const from = state.selected;
      const i = now.match(from, from >= 0 ? now.start[from] : state.t0, direction);
      const hit = i >= 0 ? i : now.match(-1, direction > 0 ? -Infinity : Infinity, direction);
      if (hit < 0) return;
      act.choose(hit, true);
      ui.tell(now.rank(hit) + 1);
    },
  };
  return Object.assign(act, { bounds });
}
