// Binary search in sorted arrays.

// The first index in [from, to) at which the sorted values are at least `value`, or above it.
export function placeOf(values, value, from, to, above = false) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (above ? values[middle] <= value : values[middle] < value) from = middle + 1;
    else to = middle;
  }
  return from;
}

// The first index in [0, size) at which the sorted values are above `value`.
export const placeAfter = (values, value, size = values.length) => placeOf(values, value, 0, size, true);
