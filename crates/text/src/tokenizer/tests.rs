use proptest::prelude::*;
use taper_testkit::gguf::{GgufBuilder, Value};

use super::*;
use crate::test_vocabulary::{byte_level, pieces, sentence_piece, tokenizer, with_string};

const TOKENS: &str = "tokenizer.ggml.tokens";
const MERGES: &str = "tokenizer.ggml.merges";

fn check(file: &GgufBuilder, text: &str, expected: &[&str]) {
    assert_eq!(pieces(&tokenizer(file).unwrap(), text), expected, "{text:?}");
}

/// Reading `file` fails, and the error says all of `parts`.
fn check_refused(file: &GgufBuilder, parts: &[&str]) {
    let error = tokenizer(file).expect_err("the file is bad").to_string();
    for part in parts {
        assert!(error.contains(part), "no {part:?} in: {error}");
    }
}

#[test]
fn merges_are_applied_by_rank_and_within_words() {
    check(&byte_level(), "hello", &["hello"]);
    check(&byte_level(), " the thing", &["Ġthe", "Ġt", "h", "ing"]);
    check(&byte_level(), "\n\n é", &["ĊĊ", "Ġ", "Ã", "©"]);
    check(&byte_level(), "", &[]);
}

#[test]
fn the_best_score_is_merged_first_and_the_leftmost_among_equals() {
    check(&sentence_piece(), "hello", &["▁hello"]);
    check(&sentence_piece(), "ahello", &["▁a", "hello"]);
    // "aa" twice from the left, then the odd one joins its neighbour. Scores alone do not decide this.
    check(&sentence_piece().bool("tokenizer.ggml.add_space_prefix", false), "aaaaa", &["aa", "aaa"]);
    check(&sentence_piece().bool("tokenizer.ggml.add_space_prefix", false), "aaaa", &["aa", "aa"]);
}

#[test]
fn characters_that_are_no_piece_are_spelled_in_bytes() {
    check(&sentence_piece(), "é\n", &["▁", "<0xC3>", "<0xA9>", "<0x0A>"]);
}

#[test]
fn sentence_piece_puts_its_blank_before_each_stretch_of_text() {
    check(&sentence_piece(), "a<s>a</s> a", &["▁a", "<s>", "▁a", "</s>", "▁", "▁a"]);
    check(&sentence_piece().bool("tokenizer.ggml.add_space_prefix", false), "a<s> a", &["a", "<s>", "▁a"]);
}

#[test]
fn control_tokens_are_parsed_on_request_only_and_user_defined_ones_always() {
    for (file, control) in [(byte_level(), "<|im_end|>"), (sentence_piece(), "</s>")] {
        let tokenizer = tokenizer(&file).unwrap();
        let encode =
            |parse_special| tokenizer.encode(control, EncodeOptions { parse_special, add_bos: false }).unwrap();
        assert_eq!(encode(true), [tokenizer.eos().unwrap()]);
        assert!(!encode(false).contains(&tokenizer.eos().unwrap()) && encode(false).len() > 1);
        assert_eq!(tokenizer.decode(&encode(false), true), control);
    }
    let tokenizer = tokenizer(&sentence_piece()).unwrap();
    let ids = tokenizer.encode("a<tool>a", EncodeOptions::default()).unwrap();
    let texts: Vec<_> = ids.iter().filter_map(|&id| tokenizer.token_text(id)).collect();
    assert_eq!(texts, ["▁a", "<tool>", "▁a"]);
}

#[test]
fn bos_is_added_once_and_only_where_the_file_wants_it() {
    let options = EncodeOptions { parse_special: true, add_bos: true };
    let first_two = |file: &GgufBuilder, text| {
        let tokenizer = tokenizer(file).unwrap();
        let ids = tokenizer.encode(text, options).unwrap();
        ids.iter().take(2).map(|&id| tokenizer.token_text(id).unwrap().to_owned()).collect::<Vec<_>>()
    };
    let wanted = byte_level().bool(ADD_BOS, true);
    assert_eq!(first_two(&wanted, "hello"), ["<|im_start|>", "hello"]);
    assert_eq!(first_two(&wanted, "<|im_start|>hello"), ["<|im_start|>", "hello"], "it is there already");
    assert_eq!(first_two(&wanted, ""), ["<|im_start|>"]);
    assert_eq!(first_two(&byte_level(), "hello"), ["hello"], "byte-level files say so where they want it");
    assert_eq!(first_two(&sentence_piece(), "hello"), ["<s>", "▁hello"], "SentencePiece models want it");
    assert_eq!(first_two(&sentence_piece().bool(ADD_BOS, false), "hello"), ["▁hello"]);
    let llama3 = byte_level().set("tokenizer.ggml.pre", Value::String("llama-bpe".into()));
    assert_eq!(first_two(&llama3, "hello"), ["<|im_start|>", "hello"], "Llama 3 models want it");
    // Typed by a user, it is text, and the real one comes before it.
    let typed = EncodeOptions { parse_special: false, add_bos: true };
    let ids = tokenizer(&wanted).unwrap().encode("<|im_start|>", typed).unwrap();
    assert!(ids.len() > 2 && !ids[1..].contains(&ids[0]));
}

#[test]
fn the_end_of_an_embedded_text_is_eos_where_the_file_wants_it() {
    let plain = tokenizer(&byte_level()).unwrap();
    assert_eq!(plain.end_of_embedded(), None);
    let wanted = tokenizer(&byte_level().bool(ADD_EOS, true)).unwrap();
    assert_eq!((wanted.end_of_embedded(), wanted.end_of_embedded().is_some()), (wanted.eos(), true));
    // Nowhere else.
    let options = EncodeOptions { parse_special: true, add_bos: true };
    assert_eq!(wanted.encode("hello", options).unwrap(), plain.encode("hello", options).unwrap());
}

#[test]
fn generation_ends_at_eos_eot_eom_and_at_tokens_of_well_known_text() {
    let texts = |file: &GgufBuilder| {
        let tokenizer = tokenizer(file).unwrap();
        let ends = tokenizer.end_of_generation().iter();
        ends.map(|&id| tokenizer.token_text(id).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(texts(&byte_level()), ["<|endoftext|>", "<|im_end|>"]);
    let named = byte_level().u32("tokenizer.ggml.eot_token_id", 65).u32("tokenizer.ggml.eom_token_id", 66);
    assert_eq!(texts(&named), ["A", "B", "<|endoftext|>", "<|im_end|>"]);
    assert_eq!(texts(&sentence_piece()), ["</s>"]);
}

#[test]
fn a_well_known_end_is_a_control_token_whatever_the_file_says_except_qwens_strike_through() {
    let tokens = byte_level().without("tokenizer.ggml.token_type");
    let plain = tokenizer(&tokens).unwrap();
    let id = plain.eos().unwrap();
    assert_eq!(plain.decode(&[id], true), "", "<|im_end|> does not show in answers");
    let html = tokenizer(&with_string(tokens, TOKENS, 1000, "</s>")).unwrap();
    let id = html.vocab_size() as u32 - 1;
    assert!(!html.end_of_generation().contains(&id));
    assert_eq!(html.decode(&[id], true), "</s>");
}

#[test]
fn decoding_leaves_special_tokens_out_on_request_and_survives_any_id() {
    let tokenizer = tokenizer(&sentence_piece()).unwrap();
    let ids = tokenizer.encode("<s>a</s>a", EncodeOptions { parse_special: true, add_bos: false }).unwrap();
    assert_eq!(tokenizer.decode(&ids, false), "<s>a</s>a");
    assert_eq!(tokenizer.decode(&ids, true), "aa");
    assert_eq!(tokenizer.decode(&[u32::MAX, 3 + 0x41, 1 << 20], true), "A");
    assert_eq!((tokenizer.token_text(u32::MAX), tokenizer.token_bytes(u32::MAX)), (None, None));
    assert_eq!(tokenizer.token_bytes(0), Some("<unk>".as_bytes()));
}

#[test]
fn bytes_without_a_token_are_left_out_and_nothing_is_merged_across_them() {
    let file = with_string(byte_level(), TOKENS, 4, "[gone]");
    check(&file, "a\u{4}he\u{4}", &["a", "he"]);
    check(&file, "\u{4}\u{4}", &[]);
    // Two dots in one word would merge if the byte between them simply vanished.
    let dots = with_string(file, TOKENS, usize::from(b'z'), "..").set(MERGES, Value::strings(&[". ."]));
    check(&dots, "..", &[".."]);
    check(&dots, ".\u{4}.", &[".", "."]);
}

#[test]
fn other_kinds_are_refused_by_name_with_what_is_supported() {
    let model = |name: &str| byte_level().set("tokenizer.ggml.model", Value::String(name.into()));
    check_refused(&model("bert"), &["tokenizer.ggml.model", "\"bert\"", "gpt2", "llama"]);
    check_refused(&model("\u{1b}[2J"), &["\\u{1b}"]);
    let pre = |name: &str| byte_level().set("tokenizer.ggml.pre", Value::String(name.into()));
    check_refused(&pre("falcon"), &["tokenizer.ggml.pre", "\"falcon\"", "smollm", "llama-bpe", "qwen2"]);
    check_refused(&byte_level().without("tokenizer.ggml.pre"), &["tokenizer.ggml.pre", "missing"]);
    check_refused(&byte_level().without("tokenizer.ggml.model"), &["tokenizer.ggml.model", "missing"]);
}

#[test]
fn a_vocabulary_that_contradicts_itself_is_an_error_that_names_the_key() {
    let empty: [&str; 0] = [];
    let strings = |key: &str, texts: &[&str]| byte_level().set(key, Value::strings(texts));
    const TYPES: &str = "tokenizer.ggml.token_type";
    const SCORES: &str = "tokenizer.ggml.scores";
    check_refused(&strings(TOKENS, &empty), &[TOKENS, "no token"]);
    check_refused(&byte_level().without(TOKENS), &[TOKENS, "missing"]);
    check_refused(&byte_level().set(TOKENS, Value::U32(7)), &[TOKENS]);
    check_refused(&byte_level().without(TYPES).i32s(TYPES, &[1, 2]), &[TYPES, "2 elements", "271"]);
    check_refused(&with_string(byte_level(), TOKENS, 66, "A"), &[TOKENS, "65", "66", "\"A\""]);
    check_refused(&byte_level().without(MERGES), &[MERGES, "missing"]);
    check_refused(&strings(MERGES, &["h e", "he"]), &[MERGES, "merge 1", "\"he\""]);
    check_refused(&strings(MERGES, &["h e", "h x"]), &[MERGES, "merge 1", "\"hx\""]);
    check_refused(&strings(MERGES, &["h nonesuch"]), &[MERGES, "nonesuch"]);
    // Joined, these are longer than any token; the tokenizers crate would panic on them.
    check_refused(&strings(MERGES, &["<|endoftext|> <|im_start|>"]), &[MERGES, "merge 0"]);
    check_refused(&byte_level().set(BOS, Value::U32(271)), &[BOS, "271"]);
    check_refused(&byte_level().set(EOS, Value::I32(-1)), &[EOS, "-1"]);
    check_refused(&byte_level().u32("tokenizer.ggml.eot_token_id", u32::MAX), &["eot_token_id"]);
    check_refused(&byte_level().without(BOS).bool(ADD_BOS, true), &[ADD_BOS, BOS]);
    check_refused(&sentence_piece().without(SCORES), &[SCORES, "missing"]);
    check_refused(&sentence_piece().without(SCORES).f32s(SCORES, &[1.0]), &[SCORES, "1 elements", "276"]);
    check_refused(&with_string(sentence_piece(), TOKENS, 3, "<0xG0>"), &[TOKENS, "byte token 3", "<0xG0>"]);
    check_refused(
        &with_string(sentence_piece(), TOKENS, 3, "<0x01>").without(TYPES).without(UNKNOWN),
        &[TOKENS, "tokens 3 and 4"],
    );
    check_refused(&sentence_piece().without(TYPES).without(UNKNOWN), &[TOKENS, "<0x00>", "unknown"]);
}

#[test]
fn odd_but_usable_vocabularies_are_used() {
    let holes = with_string(with_string(byte_level(), TOKENS, 1, ""), TOKENS, 2, "");
    check(&holes, "hello", &["hello"]);
    let nan = sentence_piece().without("tokenizer.ggml.scores").f32s("tokenizer.ggml.scores", &[f32::NAN; 276]);
    assert!(!pieces(&tokenizer(&nan).unwrap(), "hello").is_empty());
    check(&with_string(byte_level(), MERGES, 1000, "h e"), "hello", &["hello"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_text_comes_back(text in "(?s)(.|[a-z ]|<s>|</s>|<tool>|<\\|im_end\\|>|hello| {2,9}){0,20}", parse_special: bool) {
        for file in [byte_level(), sentence_piece(), sentence_piece().bool("tokenizer.ggml.add_space_prefix", false)] {
            // SentencePiece has one symbol for its blank and for a real one of that shape.
            let text = text.replace('▁', "_");
            let tokenizer = tokenizer(&file).unwrap();
            let ids = tokenizer.encode(&text, EncodeOptions { parse_special, add_bos: false }).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids, false), text);
        }
    }

    #[test]
    fn no_vocabulary_makes_reading_or_encoding_panic(
        tokens in prop::collection::vec("[ab ▁<>]{0,4}|<0x[0-9A-F]{2}>|</s>", 0..40),
        types in prop::collection::vec(-1..8, 0..40),
        merges in prop::collection::vec("[ab]{0,2} ?[ab]{0,2}", 0..8),
        scores in prop::collection::vec(any::<f32>(), 0..40),
        ids in prop::collection::vec(0u32..40, 3),
        same_length: bool,
    ) {
        let len = |found: usize| if same_length { tokens.len() } else { found };
        let types: Vec<i32> = types.iter().copied().cycle().take(if types.is_empty() { 0 } else { len(types.len()) }).collect();
        let scores: Vec<f32> = scores.iter().copied().cycle().take(if scores.is_empty() { 0 } else { len(scores.len()) }).collect();
        for model in ["gpt2", "llama"] {
            let file = GgufBuilder::new(3)
                .string("general.architecture", "llama")
                .string("tokenizer.ggml.model", model)
                .string("tokenizer.ggml.pre", "llama-bpe")
                .strings(TOKENS, &tokens)
                .i32s("tokenizer.ggml.token_type", &types)
                .strings(MERGES, &merges)
                .f32s("tokenizer.ggml.scores", &scores)
                .u32(BOS, ids[0])
                .u32(EOS, ids[1])
                .u32(UNKNOWN, ids[2]);
            if let Ok(tokenizer) = tokenizer(&file) {
                let ids = tokenizer.encode("ab a<b>▁ 🦀</s>", EncodeOptions { parse_special: true, add_bos: true }).unwrap();
                prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
                tokenizer.decode(&ids, false);
            }
        }
    }
}

#[test]
fn special_ids_are_those_of_which_is_special_says_so() {
    for file in [byte_level(), sentence_piece()] {
        let tokenizer = tokenizer(&file).unwrap();
        let ids = 0..tokenizer.vocab_size() as u32;
        let expected: Vec<u32> = ids.filter(|&id| tokenizer.is_special(id)).collect();
        assert_eq!(tokenizer.special_ids(), expected);
        assert!(expected.contains(&tokenizer.eos().unwrap()));
    }
}
