use proptest::prelude::*;

use super::*;

const THINK: ReasoningMarks = ReasoningMarks { start: "<think>", end: "</think>" };

fn tools(format: ToolFormat, is_certain: bool) -> AnswerSyntax {
    let tools = Some(ToolSyntax { format, names: vec!["f".to_owned(), "g".to_owned()], is_certain });
    AnswerSyntax { tools, ..AnswerSyntax::default() }
}

fn thinking(start: ReasoningStart) -> AnswerSyntax {
    AnswerSyntax { reasoning: Some((THINK, start)), ..tools(ToolFormat::Hermes, false) }
}

/// The parts of an answer that comes in these pieces, neighbours put together.
fn parts(syntax: &AnswerSyntax, pieces: &[&str]) -> Vec<AnswerPart> {
    let mut parser = AnswerParser::new(syntax.clone());
    let mut all: Vec<AnswerPart> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    all.extend(parser.finish());
    assert_eq!(parser.num_calls(), all.iter().filter(|part| matches!(part, AnswerPart::CallBegun { .. })).count());
    let mut merged: Vec<AnswerPart> = Vec::new();
    for part in all {
        match (merged.last_mut(), part) {
            (Some(AnswerPart::Text(last)), AnswerPart::Text(text))
            | (Some(AnswerPart::Reasoning(last)), AnswerPart::Reasoning(text)) => last.push_str(&text),
            (
                Some(AnswerPart::CallArguments { index: a, text: last }),
                AnswerPart::CallArguments { index: b, text },
            ) if *a == b => {
                last.push_str(&text);
            }
            (_, part) => merged.push(part),
        }
    }
    merged
}

/// The same in short: `R:` thoughts, `T:` text, `name(arguments)` calls.
fn short(syntax: &AnswerSyntax, pieces: &[&str]) -> String {
    let parts = parts(syntax, pieces).into_iter().map(|part| match part {
        AnswerPart::Reasoning(text) => format!("R:{text}|"),
        AnswerPart::Text(text) => format!("T:{text}|"),
        AnswerPart::CallBegun { index, name } => format!("{index}:{name}"),
        AnswerPart::CallArguments { text, .. } => format!("({text})|"),
    });
    parts.collect()
}

/// The answer has these parts, whole, byte by byte and cut anywhere in two.
fn check(syntax: &AnswerSyntax, text: &str, expected: &str) {
    assert_eq!(short(syntax, &[text]), expected, "{text:?}");
    let letters: Vec<String> = text.chars().map(String::from).collect();
    let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
    assert_eq!(short(syntax, &letters), expected, "{text:?} letter by letter");
    for at in (0..text.len()).filter(|&at| text.is_char_boundary(at)) {
        assert_eq!(short(syntax, &[&text[..at], &text[at..]]), expected, "{text:?} cut at {at}");
    }
}

fn check_hermes(text: &str, expected: &str) {
    check(&tools(ToolFormat::Hermes, false), text, expected);
}

#[test]
fn text_without_calls_is_text() {
    check_hermes("Hello <b>you</b> \n", "T:Hello <b>you</b> \n|");
    check_hermes("", "");
    check_hermes(" \n", "T: \n|");
    check(&AnswerSyntax::default(), "<tool_call>{} <think>", "T:<tool_call>{} <think>|");
}

#[test]
fn hermes_calls_are_found_and_blanks_around_them_do_not_count() {
    let call = r#"<tool_call>
{"name": "f", "arguments": {"a": "<é\"}", "b": 1.50}}
</tool_call>"#;
    let found = r#"0:f({"a": "<é\"}", "b": 1.50})|"#;
    check_hermes(call, found);
    check_hermes(&format!("Let me see.\n\n{call}\n"), &format!("T:Let me see.|{found}"));
    check_hermes(
        &format!("{call}\n<tool_call>{{\"arguments\": {{}}, \"name\": \"g\"}}</tool_call>"),
        &format!("{found}1:g({{}})|"),
    );
    check_hermes(&format!("{call} Done."), &format!("{found}T: Done.|"));
    check_hermes("<tool_call>{\"name\": \"f\"}</tool_call>", "0:f({})|");
    check_hermes("<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>", "0:f({\"a\": 1})|");
}

#[test]
fn several_objects_in_one_pair_of_marks_are_several_calls() {
    check_hermes(
        "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"g\", \"arguments\": {}}</tool_call>",
        "0:f({})|1:g({})|",
    );
}

#[test]
fn a_call_without_its_last_mark_is_a_call() {
    for end in ["", "\n", "\n</tool", "</tool_call>"] {
        check_hermes(&format!("<tool_call>{{\"name\": \"f\", \"arguments\": {{}}}}{end}"), "0:f({})|");
    }
}

#[test]
fn what_is_no_call_stays_text_and_the_next_call_is_found() {
    for bad in [
        "<tool_call>",
        "<tool_call>\nf(1)\n</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": </tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1 2}}</tool_call>",
        "<tool_call>{\"name\": \"f, \"arguments\": {}}\n</tool_call>",
        "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"no object\"}</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>{}",
    ] {
        check_hermes(bad, &format!("T:{bad}|"));
        let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
        check_hermes(&format!("{bad}\n{call}"), &format!("T:{bad}|0:f({{}})|"));
    }
    // Cut off by a limit.
    check_hermes("A <tool_call>\n{\"name\": \"f\", \"arg", "T:A <tool_call>\n{\"name\": \"f\", \"arg|");
}

#[test]
fn llamas_calls_need_no_mark_but_a_known_name() {
    let check = |text: &str, expected: &str| check(&tools(ToolFormat::Llama3, false), text, expected);
    let call = "{\"name\": \"f\", \"parameters\": {\"a\": 1}}";
    check(call, "0:f({\"a\": 1})|");
    check(&format!("\n\n{call}"), "0:f({\"a\": 1})|");
    check(&format!("<|python_tag|>{call}"), "0:f({\"a\": 1})|");
    check(&format!("{call}; {call}"), "0:f({\"a\": 1})|1:f({\"a\": 1})|");
    check(&format!("{call}\n{call};"), "0:f({\"a\": 1})|1:f({\"a\": 1})|");
    check("{\"type\": \"function\", \"name\": \"g\", \"parameters\": {}}", "0:g({})|");
    for text in [
        "{\"name\": \"Bob\", \"parameters\": {}}",
        "{\"name\": \"f\"}",
        "{\"a\": [1, 2]}",
        "{",
        "{ not JSON",
        "So {\"name\": \"f\", \"parameters\": {}}",
        "<|python",
    ] {
        check(text, &format!("T:{text}|"));
    }
    check("{\"a\": 1} and more", "T:{\"a\": 1} and more|");
}

#[test]
fn mistrals_calls_are_an_array() {
    for format in [ToolFormat::Mistral, ToolFormat::MistralArgs] {
        let check = |text: &str, expected: &str| check(&tools(format, false), text, expected);
        let (f, g) =
            ("{\"name\": \"f\", \"arguments\": {\"a\": [1]}}", "{\"name\": \"g\", \"arguments\": {}, \"id\": \"1\"}");
        check(&format!("[TOOL_CALLS][{f}, {g}]"), "0:f({\"a\": [1]})|1:g({})|");
        check(&format!("So.\n[TOOL_CALLS] [{f}]\n"), "T:So.|0:f({\"a\": [1]})|");
        check(&format!("[TOOL_CALLS]{f}"), "0:f({\"a\": [1]})|");
        check("[TOOL_CALLS][1]", "T:[TOOL_CALLS][1]|");
        check(&format!("[TOOL_CALLS][{f}, oh]"), "0:f({\"a\": [1]})|T:, oh]|");
    }
}

#[test]
fn mistrals_later_calls_have_the_name_first() {
    let check = |text: &str, expected: &str| check(&tools(ToolFormat::MistralArgs, false), text, expected);
    check("[TOOL_CALLS]f[ARGS]{\"a\": 1}", "0:f({\"a\": 1})|");
    check("[TOOL_CALLS]f{\"a\": 1}[TOOL_CALLS]g[ARGS] {}", "0:f({\"a\": 1})|1:g({})|");
    check("[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}", "0:f({})|");
    for text in ["[TOOL_CALLS]f", "[TOOL_CALLS]f[ARGS]5", "[TOOL_CALLS]f g{}", "[TOOL_CALLS]f[ARGS]{\"a\"}"] {
        check(text, &format!("T:{text}|"));
    }
}

#[test]
fn arguments_that_a_grammar_guards_come_in_pieces() {
    for (format, text) in [
        (ToolFormat::Hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"xyz\"}}\n</tool_call>"),
        (ToolFormat::Llama3, "{\"name\": \"f\", \"parameters\": {\"a\": \"xyz\"}}"),
        (ToolFormat::Mistral, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": \"xyz\"}}]"),
        (ToolFormat::MistralArgs, "[TOOL_CALLS]f[ARGS]{\"a\": \"xyz\"}"),
    ] {
        let syntax = tools(format, true);
        check(&syntax, text, "0:f({\"a\": \"xyz\"})|");
        check(&syntax, &text[..text.find("yz").unwrap()], "0:f({\"a\": \"x)|");
        let mut parser = AnswerParser::new(syntax);
        let pieces = text.chars().filter(|letter| !parser.push(&letter.to_string()).is_empty()).count();
        assert!(pieces > 5, "{format:?}: {pieces}");
    }
    check(
        &tools(ToolFormat::Hermes, true),
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {\"a\": {}}}\n</tool_call>",
        "0:f({})|1:g({\"a\": {}})|",
    );
    check(
        &tools(ToolFormat::Llama3, true),
        "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
        "0:f({})|1:g({})|",
    );
}

#[test]
fn a_call_that_a_grammar_guards_is_never_text_however_early_it_is_cut() {
    for (format, mark, rest) in [
        (ToolFormat::Hermes, "<tool_call>", "\n{\"name\": \"f\", \"arguments\": "),
        (ToolFormat::Llama3, "<|python_tag|>", "{\"name\": \"f\", \"parameters\": "),
        (ToolFormat::Mistral, "[TOOL_CALLS]", "[{\"name\": \"f\", \"arguments\": "),
        (ToolFormat::MistralArgs, "[TOOL_CALLS]", "f[ARGS]"),
    ] {
        for len in 0..=rest.len() {
            let text = format!("ab {mark}{}", &rest[..len]);
            check(&tools(format, true), &text, "T:ab|");
            check(&tools(format, false), &text, &format!("T:{text}|"));
        }
    }
    let text = "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"na";
    check(&tools(ToolFormat::Mistral, true), text, "0:f({})|");
    // Without a mark it may be any text.
    check(&tools(ToolFormat::Llama3, true), "{\"name\": \"f\"", "T:{\"name\": \"f\"|");
}

#[test]
fn a_call_is_open_until_its_arguments_end() {
    let text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": {\"b\": 1}}}\n</tool_call>";
    let (begin, end) = (text.find("{\"a\"").unwrap(), text.find("}}}").unwrap() + 2);
    for len in 0..=text.len() {
        let mut parser = AnswerParser::new(tools(ToolFormat::Hermes, true));
        parser.push(&text[..len]);
        parser.finish();
        assert_eq!(parser.has_open_call(), (begin + 1..end).contains(&len), "{:?}", &text[..len]);
    }
    // Without a grammar a call is told when it is whole.
    let mut parser = AnswerParser::new(tools(ToolFormat::Hermes, false));
    parser.push(&text[..end - 1]);
    parser.finish();
    assert_eq!((parser.num_calls(), parser.has_open_call()), (0, false));
}

#[test]
fn a_hundred_thousand_blanks_are_looked_at_once() {
    // Looked at again with every piece they would be ten thousand million.
    let blanks = " \n".repeat(100_000);
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let call_found = "0:f({})|";
    for (before, after, expected) in [
        ("", "", format!("T:{blanks}|")),
        ("a", "b", format!("T:a{blanks}b|")),
        ("a", call, format!("T:a|{call_found}")),
        (call, "", call_found.to_owned()),
        (call, "b", format!("{call_found}T:{blanks}b|")),
        (&call[..call.len() - 12], call, call_found.to_owned() + "1:f({})|"),
    ] {
        let text = format!("{before}{blanks}{after}");
        let letters: Vec<&str> = text.split_inclusive(|_: char| true).collect();
        assert_eq!(short(&tools(ToolFormat::Hermes, false), &letters), expected);
    }
    let letters: Vec<&str> = blanks.split_inclusive(|_: char| true).collect();
    for format in [ToolFormat::Llama3, ToolFormat::Mistral] {
        assert_eq!(short(&tools(format, false), &letters), format!("T:{blanks}|"));
    }
    for (start, before, expected) in [
        (ReasoningStart::Possible, "", format!("T:{blanks}|")),
        (ReasoningStart::Open, "a", "R:a|".to_owned()),
        (ReasoningStart::Over, "", String::new()),
    ] {
        let pieces: Vec<&str> = std::iter::once(before).chain(letters.iter().copied()).collect();
        assert_eq!(short(&thinking(start), &pieces), expected);
    }
}

#[test]
fn thoughts_are_told_apart() {
    let possible = thinking(ReasoningStart::Possible);
    check(&possible, "<think>\nHm <b>.\n</think>\n\nYes.", "R:Hm <b>.|T:Yes.|");
    check(&possible, "\n<think></think>Yes.", "T:Yes.|");
    check(&possible, "No <think>x</think>", "T:No <think>x</think>|");
    check(&possible, "<think>cut o", "R:cut o|");
    check(&possible, "<thin", "T:<thin|");
    let open = thinking(ReasoningStart::Open);
    check(&open, "Hm.\n</think>\n\nYes.", "R:Hm.|T:Yes.|");
    check(&open, "Hm.</thin", "R:Hm.</thin|");
    check(&thinking(ReasoningStart::Over), "\nYes. <think>", "T:Yes. <think>|");
}

#[test]
fn an_answer_that_goes_on_keeps_its_first_blanks() {
    let goes_on = |start| AnswerSyntax { goes_on: true, ..thinking(start) };
    let over = goes_on(ReasoningStart::Over);
    check(&over, " world. <think>", "T: world. <think>|");
    check(&over, "\n", "T:\n|");
    check(&over, ", so:\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", "T:, so:|0:f({})|");
    let open = goes_on(ReasoningStart::Open);
    check(&open, " and so.\n</think>\n\nYes.", "R: and so.|T:Yes.|");
    check(&open, "\n</think>\n\nYes.", "T:Yes.|");
    // Within a text a call has its mark; behind thoughts it may stand alone as ever.
    let call = "{\"name\": \"f\", \"parameters\": {}}";
    let llama =
        |start| AnswerSyntax { goes_on: true, reasoning: Some((THINK, start)), ..tools(ToolFormat::Llama3, false) };
    check(&llama(ReasoningStart::Over), call, &format!("T:{call}|"));
    check(&llama(ReasoningStart::Over), &format!("<|python_tag|>{call}"), "0:f({})|");
    check(&llama(ReasoningStart::Open), &format!("</think>{call}"), "0:f({})|");
}

#[test]
fn calls_in_thoughts_are_thoughts_and_calls_behind_them_are_calls() {
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    check(
        &thinking(ReasoningStart::Open),
        &format!("I could {call}.</think>\n{call}"),
        &format!("R:I could {call}.|0:f({{}})|"),
    );
}

#[test]
fn the_parser_says_whether_the_model_thinks() {
    let mut parser = AnswerParser::new(thinking(ReasoningStart::Possible));
    assert!(!parser.is_reasoning());
    parser.push("<think>a");
    assert!(parser.is_reasoning());
    parser.push("</think>");
    assert!(!parser.is_reasoning());
}

/// Pieces that answers are made of, and pieces of these.
fn fragment() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
        "{\"name\": \"g\", \"parameters\": {}}",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[",
        "]",
        "{",
        "}",
        "\"",
        ",",
        ";",
        ":",
        " ",
        "\n",
        "<",
        "é",
        "f",
        "\\",
        "<|python_tag|>",
        "<think>",
        "</think>",
        "{\"name\": \"f\", \"arguments\": ",
        "</tool",
        "_call>",
        "text",
        "{}",
    ])
}

fn syntaxes() -> Vec<AnswerSyntax> {
    use ToolFormat::{Hermes, Llama3, Mistral, MistralArgs};
    let formats = [Hermes, Llama3, Mistral, MistralArgs];
    let starts = [ReasoningStart::Possible, ReasoningStart::Open, ReasoningStart::Over];
    let formats = formats.into_iter().flat_map(|format| [tools(format, false), tools(format, true)]);
    let goes_on = starts.map(|start| AnswerSyntax { goes_on: true, ..thinking(start) });
    formats.chain(starts.map(thinking)).chain(goes_on).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn parts_are_the_same_however_the_text_is_cut(
        fragments in prop::collection::vec(fragment(), 0..12),
        cuts in prop::collection::vec(0usize..200, 0..8),
    ) {
        let text = fragments.concat();
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|&cut| text.is_char_boundary(cut)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&str> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        for syntax in syntaxes() {
            prop_assert_eq!(parts(&syntax, &pieces), parts(&syntax, &[&text]), "{:?} {:?}", syntax, text);
        }
    }

    #[test]
    fn no_call_is_lost_whatever_stands_before_it(fragments in prop::collection::vec(fragment(), 0..8)) {
        // An open string or object may hold anything; a line's end inside a string, or `<` outside, ends what is no JSON.
        let before = fragments.concat();
        let text = format!("{before}\n<\n<tool_call>{{\"name\": \"last\", \"arguments\": {{\"z\": 0}}}}</tool_call>");
        let found = short(&tools(ToolFormat::Hermes, false), &[&text]);
        prop_assert!(found.ends_with("last({\"z\": 0})|"), "{:?}: {}", text, found);
    }

    #[test]
    fn without_marks_no_byte_is_changed(text in "[a-z<>\\[\\]{}\" \n]{0,40}") {
        for format in [ToolFormat::Hermes, ToolFormat::Mistral] {
            let whole = parts(&tools(format, false), &[&text]);
            let expected: Vec<AnswerPart> = std::iter::once(text.clone()).filter(|text| !text.is_empty()).map(AnswerPart::Text).collect();
            prop_assert_eq!(whole, expected);
        }
    }
}
