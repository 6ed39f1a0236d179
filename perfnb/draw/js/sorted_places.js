// Binary search in sorted arrays.

// The first index in [from, to) at which the sorted values are at least `value`.
export function placeOf(values, value, from, to) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (values[middle] < value) from = middle + 1;
    else to = middle;
  }
  return from;
}

// The first index in [0, size) at which the sorted values are above `value`.
export function placeAfter(values, value, size = values.length) {
  let [from, to] = [0, size];
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (values[middle] > value) to = middle;
    else from = middle + 1;
  }
  return from;
}
