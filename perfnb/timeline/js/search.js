// Further searches in sorted arrays: from nearby, and the greatest value of a range.
import { placeOf } from "../../draw/js/search.js";

// The same with doubling steps, for indices near `from`.
export function placeNear(values, value, from, to) {
  let step = 1;
  while (from + step < to && values[from + step] < value) {
    from += step;
    step *= 2;
  }
  return placeOf(values, value, from, Math.min(to, from + step));
}

// The index of the greatest of values[from..to): each level keeps the greatest of four of the level below.
export function greatestOf(values) {
  const levels = [];
  for (let below = null, size = values.length; size > 4; below = levels.at(-1)) {
    const level = new Uint32Array(Math.ceil(size / 4));
    for (let i = 0; i < size; i += 1) {
      const at = below ? below[i] : i;
      if (!(i & 3) || values[at] > values[level[i >> 2]]) level[i >> 2] = at;
    }
    levels.push(level);
    size = level.length;
  }
  return (from, to) => {
    let best = from;
    for (let level = -1; from < to; level += 1, from >>= 2, to >>= 2) {
      const items = levels[level];
      const last = level === levels.length - 1;
      for (; from < to && (last || from & 3); from += 1) if (values[items ? items[from] : from] > values[best]) best = items ? items[from] : from;
      for (; from < to && to & 3; to -= 1) if (values[items ? items[to - 1] : to - 1] > values[best]) best = items ? items[to - 1] : to - 1;
    }
    return best;
  };
}
