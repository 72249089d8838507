//! Grammars of whole answers: what they take with marks as text and as control tokens, and that whatever is chosen among the
//! allowed tokens is read as calls that keep to their schemas.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use serde_json::{Value, json};
use taper_checkpoint::Checkpoint;
use taper_testkit::gguf::Value as Field;
use taper_testkit::rng::SplitMix;
use taper_testkit::tiny::TinyModel;
use taper_testkit::vocab::sentence_piece;
use taper_text::{
    AnswerGrammar, AnswerParser, AnswerPart, AnswerSyntax, AnswerTool, Calls, EncodeOptions, Grammar, GrammarCompiler,
    GrammarSpec, ReasoningMarks, ReasoningStart, Tokenizer, ToolFormat, ToolSyntax,
};

const THINK: ReasoningMarks = ReasoningMarks { start: "<think>", end: "</think>" };
const MARKS: [&str; 7] =
    ["<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"];
const FORMATS: [ToolFormat; 4] = [ToolFormat::Hermes, ToolFormat::Llama3, ToolFormat::Mistral, ToolFormat::MistralArgs];

fn open(file: &[u8]) -> Arc<Tokenizer> {
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(path.path(), file).unwrap();
    Arc::new(Tokenizer::from_metadata(Checkpoint::open(path.path()).unwrap().metadata()).unwrap())
}

/// Bytes as tokens; the last unused tokens become the marks, of this type.
fn bytes_and_marks(kind: i32) -> Vec<u8> {
    let file = TinyModel::default().builder();
    let file = file.set_last("tokenizer.ggml.tokens", &MARKS.map(|mark| Field::String(mark.into())));
    file.set_last("tokenizer.ggml.token_type", &MARKS.map(|_| Field::I32(kind))).build()
}

/// Bytes as pieces, with the marks as control tokens, and a blank before each text.
fn blanks_and_marks() -> Vec<u8> {
    let mut pieces = vec![("▁", 1, -1.0)];
    pieces.extend(MARKS.map(|mark| (mark, 3, -2.0)));
    sentence_piece(&pieces).build()
}

/// The vocabularies by name: marks as text, as tokens that a user added, as control tokens, and behind blanks.
fn tokenizers() -> [(&'static str, Arc<Tokenizer>); 4] {
    [
        ("text", open(&TinyModel::default().to_gguf())),
        ("added", open(&bytes_and_marks(4))),
        ("control", open(&bytes_and_marks(3))),
        ("blanks", open(&blanks_and_marks())),
    ]
}

fn calls(format: ToolFormat, required: bool, parallel: bool) -> Calls {
    let schema = json!({
        "type": "object", "properties": { "a": { "$ref": "#/$defs/n" }, "b": { "type": "boolean" } }, "required": ["a"],
        "$defs": { "n": { "type": "integer" } },
    });
    let empty = json!({ "type": "object", "properties": {} });
    let tool = |name: &str, parameters: &Value| AnswerTool { name: name.to_owned(), parameters: parameters.clone() };
    Calls { format, tools: vec![tool("f", &schema), tool("f_2", &empty)], required, parallel }
}

fn answer(calls: Option<Calls>) -> AnswerGrammar {
    AnswerGrammar { reasoning: None, calls, content: None }
}

fn compile(tokenizer: &Arc<Tokenizer>, answer: &AnswerGrammar) -> Grammar {
    let compiler = GrammarCompiler::new(Arc::clone(tokenizer));
    compiler.compile(&GrammarSpec::Answer(answer.clone()), &[]).unwrap_or_else(|error| panic!("{answer:?}: {error}"))
}

/// Whether the grammar takes the text and may end behind it.
fn accepts(tokenizer: &Tokenizer, grammar: &Grammar, text: &str) -> bool {
    let mut grammar = grammar.clone();
    let tokens = tokenizer.encode(text, EncodeOptions { parse_special: true, add_bos: false }).unwrap();
    tokens.into_iter().all(|token| grammar.accept(token).is_ok()) && grammar.may_end()
}

fn check(answer: &AnswerGrammar, accepted: &[&str], refused: &[&str]) {
    for (name, tokenizer) in tokenizers() {
        let grammar = compile(&tokenizer, answer);
        for text in accepted {
            assert!(accepts(&tokenizer, &grammar, text), "{name}: {answer:?} refuses {text:?}");
        }
        for text in refused {
            assert!(!accepts(&tokenizer, &grammar, text), "{name}: {answer:?} accepts {text:?}");
        }
    }
}

/// A model that finds no end of its calls is given one.
#[test]
fn calls_that_must_come_are_sixteen_at_most() {
    let call = "<tool_call>\n{\"name\": \"f_2\", \"arguments\": {}}\n</tool_call>";
    let many = |num: usize| vec![call; num].join("\n");
    check(&answer(Some(calls(ToolFormat::Hermes, true, true))), &[&many(16)], &[&many(17)]);
    let call = "{\"name\": \"f_2\", \"parameters\": {}}";
    let many = |num: usize| vec![call; num].join("; ");
    check(&answer(Some(calls(ToolFormat::Llama3, true, true))), &[&many(16)], &[&many(17)]);
}

#[test]
fn calls_that_must_come_are_all_that_is_taken() {
    let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let other = "<tool_call>\n{\"name\": \"f_2\", \"arguments\": {}}\n</tool_call>";
    let two = format!("{one}\n{other}");
    let bad = [
        "",
        "Hi",
        "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1.5}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
    ];
    check(&answer(Some(calls(ToolFormat::Hermes, true, true))), &[one, other, &two], &bad);
    check(&answer(Some(calls(ToolFormat::Hermes, true, false))), &[one, other], &[&two]);

    let one = "{\"name\": \"f\", \"parameters\": {\"a\": 1, \"b\": true}}";
    let two = format!("{one}; {one}");
    check(&answer(Some(calls(ToolFormat::Llama3, true, true))), &[one, &two], &["", "Hi", "{}"]);
    check(&answer(Some(calls(ToolFormat::Llama3, true, false))), &[one], &[&two]);

    let one = "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}]";
    let two = "[TOOL_CALLS][{\"name\": \"f_2\", \"arguments\": {}}, {\"name\": \"f\", \"arguments\": {\"a\": 1}}]";
    check(&answer(Some(calls(ToolFormat::Mistral, true, true))), &[one, two], &["", "[TOOL_CALLS]", "[TOOL_CALLS][]"]);
    check(&answer(Some(calls(ToolFormat::Mistral, true, false))), &[one], &[two]);

    let one = "[TOOL_CALLS]f[ARGS]{\"a\": 1}";
    let two = "[TOOL_CALLS]f_2[ARGS]{}[TOOL_CALLS]f[ARGS]{\"a\": 1}";
    check(&answer(Some(calls(ToolFormat::MistralArgs, true, true))), &[one, two], &["", "[TOOL_CALLS]f", "f[ARGS]{}"]);
    check(&answer(Some(calls(ToolFormat::MistralArgs, true, false))), &[one], &[two]);
}

#[test]
fn in_free_text_the_form_begins_with_the_mark() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let around = format!("I look. {call}\n{call} Done <b>");
    let bad = ["Hm <tool_call>", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", "a <tool_call> b"];
    let free = answer(Some(calls(ToolFormat::Hermes, false, true)));
    check(&free, &["", "Hi <there> {\"a\": 1}\n", "<tool_", call, &around], &bad);
    check(&answer(Some(calls(ToolFormat::Hermes, false, false))), &["Hi", call, &format!("a {call}")], &[&around]);
    let call = "[TOOL_CALLS][{\"name\": \"f_2\", \"arguments\": {}}]";
    check(
        &answer(Some(calls(ToolFormat::Mistral, false, true))),
        &["Hi [1]", call, &format!("a {call}")],
        &["a [TOOL_CALLS]"],
    );
    let call = "[TOOL_CALLS]f_2[ARGS]{}";
    check(
        &answer(Some(calls(ToolFormat::MistralArgs, false, true))),
        &["Hi", &format!("a {call}{call}")],
        &["[TOOL_CALLS]f"],
    );
}

#[test]
fn a_form_of_the_text_holds_where_there_is_no_call() {
    let content = Some(Box::new(GrammarSpec::JsonSchema(
        json!({ "properties": { "x": { "type": "null" } }, "required": ["x"] }),
    )));
    let call = "<tool_call>\n{\"name\": \"f_2\", \"arguments\": {}}\n</tool_call>";
    let answer = AnswerGrammar { content, ..answer(Some(calls(ToolFormat::Hermes, false, true))) };
    check(&answer, &["{\"x\": null}", call], &["", "Hi", "{}", "{\"x\": null} and", &format!("{{\"x\": null}}{call}")]);
    let llama = AnswerGrammar { calls: Some(calls(ToolFormat::Llama3, false, true)), ..answer };
    check(&llama, &["{\"x\": null}", "{\"name\": \"f_2\", \"parameters\": {}}"], &["{\"name\": 1}"]);
}

#[test]
fn thoughts_come_first() {
    let content = Some(Box::new(GrammarSpec::Regex("[ab]+".to_owned())));
    let with = |start| AnswerGrammar { reasoning: Some((THINK, start)), calls: None, content: content.clone() };
    check(
        &with(ReasoningStart::Possible),
        &["ab", "<think>\nHm, 1 < 2.\n</think>\n\nab", "<think></think>a"],
        &["", "Hm", "<think>ab", "<think>x</think>", "<think>x</think>c"],
    );
    check(&with(ReasoningStart::Open), &["Hm <b>.</think>\n\na", "</think>a"], &["ab", "a</think>", "x</think>c"]);
    check(&with(ReasoningStart::Over), &["ab"], &["x</think>a", "<think>x</think>a"]);

    let call = "<tool_call>\n{\"name\": \"f_2\", \"arguments\": {}}\n</tool_call>";
    for (required, text) in [(true, None), (false, Some("Hi <b>"))] {
        let answer = AnswerGrammar {
            reasoning: Some((THINK, ReasoningStart::Possible)),
            ..answer(Some(calls(ToolFormat::Hermes, required, true)))
        };
        let thought = format!("<think>I could call <b>.</think>\n{call}");
        let mut good = vec![call, thought.as_str()];
        good.extend(text);
        check(&answer, &good, &["<think>x</think>\n<tool_call>no", "<tool_call>no"]);
    }
}

#[test]
fn a_mark_in_thoughts_begins_no_call() {
    let tokenizer = open(&TinyModel::default().to_gguf());
    for required in [true, false] {
        let reasoning = Some((THINK, ReasoningStart::Possible));
        let answer = AnswerGrammar { reasoning, ..answer(Some(calls(ToolFormat::Hermes, required, true))) };
        let text = "<think>I could <tool_call> here.</think>\n<tool_call>\n{\"name\": \"f_2\", \"arguments\": {}}\n</tool_call>";
        assert!(accepts(&tokenizer, &compile(&tokenizer, &answer), text), "{required}");
    }
}

#[test]
fn a_grammar_reaches_no_control_token_but_its_own() {
    let tokenizer = open(&bytes_and_marks(3));
    let grammar = compile(&tokenizer, &answer(Some(calls(ToolFormat::Mistral, true, true))));
    for mark in ["<tool_call>", "[ARGS]", "<|im_start|>"] {
        let token = tokenizer.control_token(mark).unwrap();
        assert!(grammar.clone().accept(token).is_err(), "{mark}");
    }
    let mut mask = grammar.empty_mask();
    grammar.clone().mask(&mut mask).unwrap();
    assert_eq!(mask.tokens().collect::<Vec<_>>(), [tokenizer.control_token("[TOOL_CALLS]").unwrap()]);
    // In a string it is text, if anything.
    let schema = GrammarSpec::JsonSchema(json!({ "type": "string" }));
    let mut string = GrammarCompiler::new(Arc::clone(&tokenizer)).compile(&schema, &[]).unwrap();
    string.accept(u32::from(b'"')).unwrap();
    assert!(string.accept(tokenizer.control_token("[TOOL_CALLS]").unwrap()).is_err());
}

/// Chooses among the allowed tokens until the grammar ends; every second choice is of those that end something.
fn random_walk(grammar: &mut Grammar, tokenizer: &Tokenizer, rng: &mut SplitMix) -> Vec<u32> {
    let mut mask = grammar.empty_mask();
    let mut tokens = Vec::new();
    while !grammar.is_finished() {
        assert!(tokens.len() < 3000, "no end: {:?}", tokenizer.decode(&tokens, false));
        for token in grammar.forced().unwrap() {
            grammar.accept(token).unwrap();
            tokens.push(token);
        }
        if grammar.is_finished() {
            break;
        }
        grammar.mask(&mut mask).unwrap();
        let allowed: Vec<u32> = mask.tokens().collect();
        let ends = |token: &u32| {
            let bytes = tokenizer.token_bytes(*token).unwrap();
            tokenizer.end_of_generation().contains(token) || bytes.first().is_some_and(|byte| b"\"]}".contains(byte))
        };
        let closing: Vec<u32> = allowed.iter().copied().filter(|token| ends(token)).collect();
        let choices = if !closing.is_empty() && rng.chance(0.5) { &closing } else { &allowed };
        let token = *rng.pick(choices);
        grammar.accept(token).unwrap();
        tokens.push(token);
    }
    tokens
}

#[test]
fn whatever_is_chosen_is_read_as_calls_that_keep_to_their_schemas() {
    for (name, tokenizer) in tokenizers() {
        for format in FORMATS {
            let wanted = calls(format, true, true);
            let grammar = compile(&tokenizer, &answer(Some(wanted.clone())));
            let mut rng = SplitMix::named(7, &format!("{name} {format:?}"));
            for is_certain in [true, false] {
                let tokens = random_walk(&mut grammar.clone(), &tokenizer, &mut rng);
                let ends = tokenizer.end_of_generation();
                let tokens: Vec<u32> = tokens.into_iter().filter(|token| !ends.contains(token)).collect();
                let text = tokenizer.decode(&tokens, false);
                let names = wanted.tools.iter().map(|tool| tool.name.clone()).collect();
                let tools = Some(ToolSyntax { format, names, is_certain });
                let mut parser = AnswerParser::new(AnswerSyntax { tools, ..AnswerSyntax::default() });
                let mut parts = parser.push(&text);
                parts.extend(parser.finish());
                let mut found: Vec<(String, String)> = Vec::new();
                for part in parts {
                    match part {
                        AnswerPart::CallBegun { name, .. } => found.push((name, String::new())),
                        AnswerPart::CallArguments { text, .. } => found.last_mut().unwrap().1.push_str(&text),
                        other => panic!("{name} {format:?}: {other:?} in {text:?}"),
                    }
                }
                assert!(!found.is_empty(), "{text:?}");
                for (tool, arguments) in found {
                    let schema = &wanted.tools.iter().find(|known| known.name == tool).unwrap().parameters;
                    let arguments: Value = serde_json::from_str(&arguments).unwrap();
                    assert!(jsonschema::validator_for(schema).unwrap().is_valid(&arguments), "{text:?}");
                }
            }
        }
    }
}

#[test]
fn limits_hold_for_tools_too() {
    let tokenizer = open(&TinyModel::default().to_gguf());
    let deep = (0..200).fold(json!({}), |inner, _| json!({ "properties": { "a": inner } }));
    for (parameters, part) in
        [(deep, "levels deep"), (json!({ "type": "object", "properties": { "a": { "type": "wizard" } } }), "wizard")]
    {
        let mut calls = calls(ToolFormat::Hermes, true, true);
        calls.tools[0].parameters = parameters;
        let spec = GrammarSpec::Answer(answer(Some(calls)));
        let error = GrammarCompiler::new(Arc::clone(&tokenizer)).compile(&spec, &[]).expect_err("it is refused");
        assert!(error.is_clients_mistake() && error.to_string().contains(part), "{error}");
    }
}
