use proptest::prelude::*;

use super::*;
use crate::EncodeOptions;
use crate::test_vocabulary::{byte_level, sentence_piece, tokenizer};

fn shared(file: &taper_testkit::gguf::GgufBuilder) -> Arc<Tokenizer> {
    Arc::new(tokenizer(file).expect("a good vocabulary"))
}

/// What comes out token by token, the end included.
fn streamed(mut detokenizer: Detokenizer, ids: &[u32]) -> Vec<String> {
    let mut pieces: Vec<String> = ids.iter().map(|&id| detokenizer.push(id)).collect();
    pieces.push(detokenizer.finish());
    pieces
}

fn check(tokenizer: &Arc<Tokenizer>, ids: &[u32], expected: &[&str]) {
    assert_eq!(streamed(Detokenizer::new(Arc::clone(tokenizer)), ids), expected, "{ids:?}");
}

#[test]
fn a_character_spread_over_tokens_comes_out_whole() {
    // In this vocabulary a byte's token has the byte's number.
    check(
        &shared(&byte_level()),
        &[b'a'.into(), 0xF0, 0x9F, 0xA6, 0x80, b'b'.into()],
        &["a", "", "", "", "🦀", "b", ""],
    );
}

#[test]
fn bytes_that_are_no_character_become_replacements_as_soon_as_that_is_certain() {
    let tokenizer = shared(&byte_level());
    check(&tokenizer, &[0xF0, 0x9F, b'a'.into()], &["", "", "\u{FFFD}a", ""]);
    check(&tokenizer, &[0xFF, 0x80], &["\u{FFFD}", "\u{FFFD}", ""]);
    check(&tokenizer, &[0xE2, 0x82], &["", "", "\u{FFFD}"]);
    check(&tokenizer, &[0xE2, 0xE2, 0x82, 0xAC], &["", "\u{FFFD}", "", "€", ""]);
}

#[test]
fn special_tokens_leave_no_trace() {
    let tokenizer = shared(&byte_level());
    let end = tokenizer.eos().expect("it has one");
    check(&tokenizer, &[end, b'a'.into(), end], &["", "a", "", ""]);
    check(&tokenizer, &[0xC3, end, 0xA9, u32::MAX], &["", "", "é", "", ""]);
}

#[test]
fn sentence_pieces_blank_goes_at_the_start_of_a_text_and_stays_in_a_continuation() {
    let tokenizer = shared(&sentence_piece());
    let ids = |text| tokenizer.encode(text, EncodeOptions { parse_special: true, add_bos: true }).expect("it encodes");
    let answer = &ids("hello a")[1..];
    let text = |detokenizer| streamed(detokenizer, answer).concat();
    assert_eq!(text(Detokenizer::new(Arc::clone(&tokenizer))), "hello a");
    assert_eq!(text(Detokenizer::continuing(Arc::clone(&tokenizer), &ids("a"))), " hello a", "after a word");
    assert_eq!(
        text(Detokenizer::continuing(Arc::clone(&tokenizer), &ids("a</s>"))),
        "hello a",
        "after a control token"
    );
    assert_eq!(text(Detokenizer::continuing(Arc::clone(&tokenizer), &[])), "hello a");
}

#[test]
fn special_tokens_that_are_named_are_shown() {
    let tokenizer = shared(&byte_level());
    let id = |text| tokenizer.control_token(text).expect("it is a control token");
    let ids = [id("<|im_start|>"), b'a'.into(), id("<|im_end|>"), b'b'.into()];
    let shown = Detokenizer::new(Arc::clone(&tokenizer)).showing(&[id("<|im_end|>")]);
    assert_eq!(streamed(shown, &ids).concat(), "a<|im_end|>b");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn the_pieces_joined_are_the_whole_decoded(
        // Mostly bytes that begin or continue characters.
        ids in prop::collection::vec(prop_oneof![0u32..290, 0x80u32..0xC0, 0xC0u32..0x100, 0xF0u32..0xF8], 0..40),
        sentence_piece_kind: bool,
    ) {
        let (tokenizer, shift) = if sentence_piece_kind {
            (shared(&sentence_piece()), 3)
        } else {
            (shared(&byte_level()), 0)
        };
        let ids: Vec<u32> = ids.into_iter().map(|id| id + shift).collect();
        let pieces = streamed(Detokenizer::new(Arc::clone(&tokenizer)), &ids);
        prop_assert_eq!(pieces.concat(), tokenizer.decode(&ids, true));
        // An independent definition of the whole, for the kind whose blanks need no care.
        if !sentence_piece_kind {
            let bytes: Vec<u8> = ids
                .iter()
                .filter(|&&id| tokenizer.kind(id).is_some_and(|kind| !kind.is_special()))
                .flat_map(|&id| tokenizer.token_bytes(id).unwrap_or_default().to_vec())
                .collect();
            prop_assert_eq!(pieces.concat(), String::from_utf8_lossy(&bytes));
        }
    }
}
