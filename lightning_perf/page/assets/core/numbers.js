// The extremes of any number of values. `Math.max(...values)` overflows the stack with more than about 100,000.

/** The largest of the values, or `floor` if that is larger. */
export function largest(values, floor = -Infinity) {
  let most = floor;
  for (const value of values) most = Math.max(most, value);
  return most;
}

/** The smallest of the values, or `ceiling` if that is smaller. */
export function smallest(values, ceiling = Infinity) {
  let least = ceiling;
  for (const value of values) least = Math.min(least, value);
  return least;
}
