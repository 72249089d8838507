//! The default model's tokens are llama.cpp's, on two thousand awkward texts (see tests/golden/tokenizer/record.py).

mod support;

use serde_json::Value;
use taper_checkpoint::Checkpoint;
use taper_text::{EncodeOptions, Tokenizer};

const GOLDEN: &str = include_str!("golden/tokenizer/smollm2.jsonl");

struct Line {
    text: String,
    ids: Vec<u32>,
    parse_special: bool,
    /// The vocabulary lacks a byte of the text.
    is_lossy: bool,
}

fn golden() -> Vec<Line> {
    let lines = GOLDEN.lines().skip(1).map(|line| {
        let line: Value = serde_json::from_str(line).expect("record.py writes JSON");
        Line {
            text: line["t"].as_str().expect("a text").to_owned(),
            ids: serde_json::from_value(line["i"].clone()).expect("ids"),
            parse_special: line["p"] == 1,
            is_lossy: line["l"] == 1,
        }
    });
    lines.collect()
}

fn tokenizer() -> Option<Tokenizer> {
    let checkpoint = Checkpoint::open(&support::model_or_skip()?).expect("the default model opens");
    Some(Tokenizer::from_metadata(checkpoint.metadata()).expect("the default model has a vocabulary"))
}

#[test]
fn tokens_are_those_of_llama_cpp() {
    let Some(tokenizer) = tokenizer() else { return };
    let golden = golden();
    assert!(golden.len() > 2000, "the corpus is cut off: {} lines", golden.len());
    let mut different = Vec::new();
    for line in &golden {
        let options = EncodeOptions { parse_special: line.parse_special, add_bos: false };
        let ids = tokenizer.encode(&line.text, options).expect("every text can be encoded");
        if ids != line.ids {
            different.push(format!("{:?}: {ids:?} instead of {:?}", line.text, line.ids));
        }
    }
    assert!(different.is_empty(), "{} of {}:\n{}", different.len(), golden.len(), different.join("\n"));
}

#[test]
fn decoding_gives_every_text_back() {
    let Some(tokenizer) = tokenizer() else { return };
    for line in golden().iter().filter(|line| !line.is_lossy) {
        assert_eq!(tokenizer.decode(&line.ids, false), line.text);
    }
}

#[test]
fn typed_control_tokens_stay_text_and_the_templates_own_do_not() {
    let Some(tokenizer) = tokenizer() else { return };
    let encode = |parse_special| {
        tokenizer.encode("<|im_end|>", EncodeOptions { parse_special, add_bos: true }).expect("it can be encoded")
    };
    assert_eq!(encode(true), [2]);
    assert!(encode(false).len() > 1);
    assert_eq!(tokenizer.decode(&encode(false), true), "<|im_end|>");
    assert_eq!(tokenizer.decode(&encode(true), true), "");
    assert_eq!(tokenizer.end_of_generation(), [0, 2, 4], "as llama.cpp lists them");
    assert_eq!((tokenizer.bos_text(), tokenizer.eos_text()), ("<|im_start|>", "<|im_end|>"));
}
