// How fast an answer came, in a line.

/** What an answer's chunks say, gathered; times are in milliseconds of one clock. */
export class Stopwatch {
  #sent;
  #first = null;
  #last = null;
  #usage = null;
  #timings = null;

  constructor(now) {
    this.#sent = now;
  }

  /** Takes a chunk at its arrival; `hasText` is whether it brought some of the answer. */
  take(chunk, hasText, now) {
    if (hasText) {
      this.#first ??= now;
      this.#last = now;
    }
    this.#usage = chunk.usage ?? this.#usage;
    this.#timings = chunk.timings ?? this.#timings;
  }

  /**
   * The line: empty while there is no text. The server's own measure of tokens per second counts where it sends one, and it alone
   * knows how many tokens were guessed.
   */
  line() {
    if (this.#first === null) return "";
    const parts = [`first token after ${seconds(this.#first - this.#sent)}`];
    const usage = this.#usage;
    if (usage) {
      const generated = usage.completion_tokens;
      const rate = this.#timings?.predicted_per_second || this.#rate(generated);
      parts.push(`${count(generated, "token")}${rate ? ` at ${rate.toFixed(rate < 10 ? 1 : 0)} per second` : ""}`);
      const cached = usage.prompt_tokens_details?.cached_tokens ?? this.#timings?.cache_n ?? 0;
      parts.push(`prompt of ${count(usage.prompt_tokens, "token")}${cached ? `, ${cached} cached` : ""}`);
    }
    const { draft_n: guesses, draft_n_accepted: right } = this.#timings ?? {};
    if (guesses > 0 && right >= 0) parts.push(`${right} of ${count(guesses, "guess", "guesses")} right`);
    return parts.join(" · ");
  }

  #rate(generated) {
    const ms = this.#last - this.#first;
    return generated > 1 && ms > 0 ? ((generated - 1) * 1000) / ms : null;
  }
}

function seconds(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`;
}

function count(number, noun, nouns = `${noun}s`) {
  return `${number} ${number === 1 ? noun : nouns}`;
}
