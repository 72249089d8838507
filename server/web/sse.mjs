// Server-sent events, cut out of a stream of text that arrives in any pieces.

/** Collects text until an event is complete. */
export class EventParser {
  #rest = "";
  #data = [];
  #isFirst = true;

  /** Takes the next piece; the data of the events that it completes. */
  push(piece) {
    if (this.#isFirst && piece !== "") {
      this.#isFirst = false;
      piece = piece.replace(/^\ufeff/, "");
    }
    const text = this.#rest + piece;
    const events = [];
    let begin = 0;
    // A carriage return at the end of what is here may be half of a line's end.
    for (const end of text.matchAll(/\r\n|\n|\r(?!$)/g)) {
      const line = text.slice(begin, end.index);
      begin = end.index + end[0].length;
      if (line !== "") {
        this.#take(line);
      } else if (this.#data.length > 0) {
        events.push(this.#data.join("\n"));
        this.#data = [];
      }
    }
    this.#rest = text.slice(begin);
    return events;
  }

  /** Takes a line; comments and fields other than `data` say nothing to us. */
  #take(line) {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    if (name === "data") {
      this.#data.push(colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, ""));
    }
  }
}

/** The data of the events of a response's body, as they come. Leaving the loop ends the transfer. */
export async function* readEvents(body) {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    // One that failed or was aborted has nothing to cancel.
    reader.cancel().catch(() => {});
  }
}
