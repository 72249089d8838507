#!/usr/bin/env python3
"""Records llama.cpp's tokens for a seeded corpus of awkward texts.

    llama-server -m SmolLM2-135M-Instruct.Q4_1.gguf --port 8088 &
    python3 tests/golden/tokenizer/record.py --server http://127.0.0.1:8088

Writes smollm2.jsonl beside itself: a line about the server, then one line per text:
    t  the text
    i  the token ids
    p  1 where control tokens in the text were parsed (llama-server's parse_special); absent otherwise
    l  1 where the vocabulary has no token for some byte, so that decoding cannot give the text back

Only the Python standard library is needed. The corpus depends on the seed and on the version of Unicode that Python's
unicodedata has; both stand in the first line.
"""

import argparse
import json
import pathlib
import random
import unicodedata
import urllib.request

SEED = 20261121
NUM_TEXTS = 2000

# The default model's vocabulary has no token for these bytes (found by looking for them in the file).
BYTES_WITHOUT_TOKEN = set(bytes.fromhex("04 06 13 14 16 1d c0 c1 f1 f2 f5 f6 f7 f8 f9 fa fb fc fd fe ff"))

ASSIGNED = [chr(c) for c in range(0x20, 0x30000) if unicodedata.category(chr(c)) not in ("Cs", "Cn", "Co", "Cc")]
COMMON = [c for c in ASSIGNED if ord(c) < 0x3000]
MARKS = [c for c in ASSIGNED if unicodedata.category(c) in ("Mn", "Mc", "Me")]
NUMBERS = [c for c in ASSIGNED if unicodedata.category(c) in ("Nd", "Nl", "No")]
BLANKS = list(" \t\n\r\x0b\x0c\u00a0\u1680\u2003\u2028\u2029\u202f\u205f\u3000")
EMOJI = ["😀", "🦀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇯🇵", "❤️", "☺", "1️⃣", "🧑🏿‍🚀", "🤷‍♀️", "⌚", "㊗️", "🫠"]
SCRIPTS = {
    "latin": "the quick brown fox jumps over naïve façade Straße coöperate Łódź İstanbul don't we'll I'm THEY'RE".split(),
    "cyrillic": "привет мир Ёлка съешь ещё этих мягких булок".split(),
    "greek": "Καλημέρα κόσμε ὦ ἄνδρες Ἀθηναῖοι".split(),
    "arabic": "السلام عليكم مَرْحَبًا بالعالم".split(),
    "hebrew": "שָׁלוֹם עולם בראשית".split(),
    "devanagari": "नमस्ते दुनिया क्षत्रिय हिन्दी".split(),
    "thai": ["สวัสดีชาวโลก", "ภาษาไทย"],
    "korean": "안녕하세요 세계 한국어".split(),
    "japanese": ["こんにちは", "世界", "カタカナ", "吾輩は猫である。"],
    "chinese": ["你好，世界", "汉字", "漢字", "𠮷野家"],
    "other": ["ᚠᛇᚻ", "გამარჯობა", "Բարեւ", "ສະບາຍດີ", "ᠮᠣᠩᠭᠣᠯ", "𐎠𐎭𐎶", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "ﷺ", "ﬁnd"],
}
CODE = [
    "fn main() {\n    println!(\"{}\", 0x1F_u8);\n}\n",
    "def f(x: int = 10) -> str:\n\treturn f\"{x!r:>08.3f}\"  # ok?\n",
    "for (int i=0;i<n;++i) a[i] += b[i]*c[i]; // 100%\n",
    "<div class=\"a-b\">&nbsp;<!-- x --></div>\n",
    "SELECT * FROM t WHERE id IN (1, 22, 333) AND s LIKE '%\\_%';\n",
    "{\"a\": [1.5e-10, null, true], \"b\\u00e9\": {}}\n",
    "$ ls -la ~/.cache | grep -v '^d' >> out.txt 2>&1\n",
    "if __name__ == '__main__':\n    import sys; sys.exit(main())\n",
    "\\frac{\\partial^2 u}{\\partial x^2} = \\sum_{i=0}^{\\infty} a_i\n",
    "    \t    // it's we've they'll I'd 'S 'T 'RE\n",
    "0b1010_1100 1e6 3.14159 1,234,567.89 192.168.0.1 2026-11-21T10:00:00Z\n",
]
CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<|im_", "im_end|>", "<|im_end|", "<file_sep>"]
ASCII = [chr(c) for c in range(0x20, 0x7F)]


def words(random_, scripts, num):
    return [random_.choice(SCRIPTS[random_.choice(scripts)]) for _ in range(num)]


def make_text(r, kind):
    if kind == "unicode":
        return "".join(r.choices(ASSIGNED, k=r.randint(1, 8)))
    if kind == "common":
        return "".join(r.choices(COMMON, k=r.randint(1, 12)))
    if kind == "ascii":
        return "".join(r.choices(ASCII, k=r.randint(1, 30)))
    if kind == "scripts":
        return r.choice(["", " "]).join(words(r, list(SCRIPTS), r.randint(2, 5)))
    if kind == "latin":
        joints = [" ", "  ", ", ", ". ", "\n", "-", "'", "’", "_", "/"]
        return "".join(w + r.choice(joints) for w in words(r, ["latin"], r.randint(2, 8)))
    if kind == "emoji":
        return "".join(r.choice([r.choice(EMOJI), r.choice(EMOJI) + " ", "ok"]) for _ in range(r.randint(1, 4)))
    if kind == "blanks":
        run = lambda: r.choice(BLANKS) * r.choice([1, 1, 2, 3, 4, 7, 8, 16, 17, 33])
        return "".join(r.choice([run(), run(), r.choice(["a", "1", ".", "é"])]) for _ in range(r.randint(1, 5)))
    if kind == "digits":
        number = lambda: "".join(r.choices("0123456789", k=r.randint(1, 12)))
        return "".join(r.choice([number(), number(), " ", "  ", ",", ".", "x", r.choice(NUMBERS)]) for _ in range(r.randint(1, 5)))
    if kind == "marks":
        base = lambda: r.choice("aeiounAEIOUαезअあ ")
        return "".join(base() + "".join(r.choices(MARKS[:200], k=r.randint(0, 2))) for _ in range(r.randint(1, 5)))
    if kind == "code":
        return "".join(r.sample(CODE, r.randint(1, 2)))
    if kind == "runs":
        return "".join(r.choice(ASCII + ["é", "漢", "🦀"]) * r.choice([2, 3, 5, 9, 20]) for _ in range(r.randint(1, 3)))
    if kind == "control":
        return "".join(r.choice(CONTROL + [" hi", "\n", "user\n", "é"]) for _ in range(r.randint(1, 5)))
    if kind == "lossy":
        rare = ["\x04", "\x13", "\x1d", "\U00040000", "\U00080000", "\U000A1234"]
        return "".join(r.choice(rare + list("ab! 1")) for _ in range(r.randint(2, 10)))
    raise ValueError(kind)


WEIGHTS = {
    "unicode": 12, "common": 14, "ascii": 14, "scripts": 12, "latin": 10, "emoji": 7, "blanks": 9, "digits": 8,
    "marks": 6, "code": 2, "runs": 4, "control": 4, "lossy": 2,
}  # fmt: skip


def make_corpus():
    r = random.Random(SEED)
    seen = set()
    corpus = [("", False)]
    while len(corpus) < NUM_TEXTS:
        kind = r.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))[0]
        item = (make_text(r, kind), kind == "control" and r.random() < 0.5)
        if item not in seen:
            seen.add(item)
            corpus.append(item)
    # A code file, whole.
    corpus.append((pathlib.Path(__file__).read_text(encoding="utf-8")[:3000], False))
    return corpus


def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="http://127.0.0.1:8088", help="a llama-server with the default model")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).with_name("smollm2.jsonl"))
    parser.add_argument("--build", help="llama.cpp's build, where the server does not know it")
    arguments = parser.parse_args()

    props = ask(arguments.server + "/props")
    about = {
        "model": pathlib.Path(props.get("model_path", "")).name,
        "llama.cpp": arguments.build or props.get("build_info", ""),
        "seed": SEED,
        "unicode": unicodedata.unidata_version,
    }
    lines = [json.dumps(about)]
    for text, parse_special in make_corpus():
        body = {"content": text, "add_special": False, "parse_special": parse_special}
        line = {"t": text, "i": ask(arguments.server + "/tokenize", body)["tokens"]}
        if parse_special:
            line["p"] = 1
        if BYTES_WITHOUT_TOKEN & set(text.encode()):
            line["l"] = 1
        lines.append(json.dumps(line, ensure_ascii=False, separators=(",", ":")))
    arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines) - 1} texts, {arguments.out.stat().st_size} bytes: {arguments.out}")


if __name__ == "__main__":
    main()
