// Histograms of cumulative counts, as Prometheus has them, and what can be told of what lies in them.

/** Counts of observations up to each bound. */
export class Histogram {
  #buckets;

  /** `[bound, observations of at most that]`, by rising bounds; the last bound is infinite. */
  constructor(buckets) {
    this.#buckets = buckets;
  }

  /** Observations in all. */
  get count() {
    return this.#buckets.at(-1)?.[1] ?? 0;
  }

  /** What came since `earlier`. Bounds that were not there then had no observations. */
  since(earlier) {
    const before = new Map(earlier.#buckets);
    return new Histogram(this.#buckets.map(([bound, count]) => [bound, Math.max(0, count - (before.get(bound) ?? 0))]));
  }

  /**
   * The value that a share `q` of the observations do not exceed; null without observations. As in Prometheus'
   * `histogram_quantile` they are taken to lie evenly within a bucket, and beyond the last finite bound at that bound.
   */
  quantile(q) {
    if (this.count === 0) return null;
    const rank = q * this.count;
    let below = 0;
    let lower = 0;
    for (const [bound, count] of this.#buckets) {
      if (count >= rank && count > below) {
        return bound === Infinity ? lower : lower + ((bound - lower) * (rank - below)) / (count - below);
      }
      below = count;
      lower = bound;
    }
    return lower;
  }
}
