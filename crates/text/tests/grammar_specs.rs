//! Each kind of specification: which texts it accepts, what it refuses and how it says so, and that nothing a client sends
//! costs more than an error.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, OnceLock};

use proptest::prelude::*;
use serde_json::{Value, json};
use taper_checkpoint::Checkpoint;
use taper_testkit::tiny::TinyModel;
use taper_text::{Grammar, GrammarCompiler, GrammarError, GrammarSpec, Tokenizer};

fn open(file: &[u8]) -> Arc<Tokenizer> {
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(path.path(), file).unwrap();
    Arc::new(Tokenizer::from_metadata(Checkpoint::open(path.path()).unwrap().metadata()).unwrap())
}

/// Over a vocabulary in which each byte is a token and its id.
fn compiler() -> &'static GrammarCompiler {
    static COMPILER: OnceLock<GrammarCompiler> = OnceLock::new();
    COMPILER.get_or_init(|| GrammarCompiler::new(open(&TinyModel::default().to_gguf())))
}

fn compile(spec: &GrammarSpec) -> Grammar {
    compiler().compile(spec, &[]).unwrap_or_else(|error| panic!("{spec:?}: {error}"))
}

/// Whether the grammar takes the text byte by byte and may end behind it. What it takes must be in the mask, unless the mask
/// insists on the usual tokenization of what is forced.
fn accepts(grammar: &mut Grammar, text: &str) -> bool {
    let mut mask = grammar.empty_mask();
    for byte in text.bytes().map(u32::from) {
        let is_known = grammar.mask(&mut mask).is_ok();
        let is_forced = mask.num_set() == 1;
        let is_accepted = grammar.accept(byte).is_ok();
        assert!(mask.contains(byte) == is_accepted || is_forced || !is_known, "{:?} of {text:?}", byte as u8 as char);
        if !is_accepted {
            return false;
        }
    }
    grammar.may_end()
}

fn check(spec: &GrammarSpec, accepted: &[&str], refused: &[&str]) {
    for text in accepted {
        assert!(accepts(&mut compile(spec), text), "{spec:?} refuses {text:?}");
    }
    for text in refused {
        assert!(!accepts(&mut compile(spec), text), "{spec:?} accepts {text:?}");
    }
}

/// Compiling fails as a client's mistake that says all of `parts`.
fn check_invalid(spec: &GrammarSpec, parts: &[&str]) {
    let error = compiler().compile(spec, &[]).expect_err("should be refused");
    assert!(error.is_clients_mistake(), "{error}");
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
    assert!(message.len() < 700 && !message.contains("backtrace"), "{message}");
}

fn schema(value: Value) -> GrammarSpec {
    GrammarSpec::JsonSchema(value)
}

fn regex(expression: &str) -> GrammarSpec {
    GrammarSpec::Regex(expression.to_owned())
}

fn gbnf(text: &str) -> GrammarSpec {
    GrammarSpec::Gbnf(text.to_owned())
}

#[test]
fn a_json_object_is_any_object_on_one_line() {
    check(
        &GrammarSpec::JsonObject,
        &["{}", r#"{"a": 1}"#, r#"{"a": [1, {"b": null}], "é": "\n"}"#],
        &["[]", "1", "{", r#"{"a":1}"#, "{ }", "{}\n", r#"{"a": 1, }"#],
    );
}

#[test]
fn schemas_decide_about_types_order_and_closedness() {
    let spec = schema(json!({
        "type": "object", "required": ["b"],
        "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 12}, "b": {"enum": ["x", null]}},
    }));
    check(
        &spec,
        &[r#"{"a": 12, "b": null}"#, r#"{"b": "x"}"#],
        &["{}", r#"{"b": "x", "a": 7}"#, r#"{"a": 13, "b": null}"#, r#"{"b": "x", "c": 1}"#],
    );
    check(&schema(json!(true)), &["1", "[]", "null"], &["", "x"]);
}

#[test]
fn a_regex_matches_from_end_to_end() {
    check(&regex("[0-9]{2,3}(a|b)?"), &["12", "123b"], &["1", "1234", "12c", "a12"]);
    check(&regex("é+/\\d"), &["éé/7"], &["e/7"]);
    check(&regex("^ab$"), &["ab"], &["a", "abb"]);
}

#[test]
fn a_choice_may_begin_another_and_hold_any_character() {
    let texts = ["yes", "yes, please", "\"quoted\" \\ 🦀\n"].map(str::to_owned);
    check(&GrammarSpec::Choice(texts.to_vec()), &["yes", "yes, please", "\"quoted\" \\ 🦀\n"], &["ye", "no", ""]);
}

#[test]
fn lark_grammars_may_refer_to_themselves() {
    let spec = GrammarSpec::grammar("start: \"(\" start \")\" | NUM\nNUM: /[0-9]+/".to_owned());
    check(&spec, &["7", "((42))"], &["(7", "7)", "()"]);
}

/// The shapes of llama.cpp's example grammars: arithmetic with blanks that end like the line, JSON, moves, lists.
#[test]
fn gbnf_grammars_accept_what_llama_cpp_accepts() {
    let arithmetic = gbnf(
        "root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\nterm ::= ident | num | \"(\" ws expr \")\" ws\n\
         ident ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]*",
    );
    check(
        &arithmetic,
        &["1=1\n", "( 12 +x1)*3 = y \n", "1=1\n\n", "1=1 \n\n2=2\n", "a=b\nc=d\n"],
        &["1=1", "1=\n", "(1=1\n", "=1\n"],
    );
    let json = gbnf(
        "root ::= object\nvalue ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n\
         object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" ws\n\
         array ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n\
         string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) )* \"\\\"\" ws\n\
         number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws\n\
         ws ::= | \" \" | \"\\n\" [ \\t]{0,20}",
    );
    check(
        &json,
        &["{}", "{ \"a\": [1, -2.5e3, true], \"é\\u00e9\": {\"b\": \"\\\\\"}}", "{\n  \"a\":null }"],
        &["[]", "{\"a\"}", "{\"a\": 01}", "{\"a\": tru}", "{'a': 1}"],
    );
    let moves = gbnf(
        "root ::= \"1. \" move \" \" move \"\\n\" ([1-9] [0-9]? \". \" move \" \" move \"\\n\")+\n\
         move ::= (pawn | nonpawn | castle) [+#]?\nnonpawn ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\n\
         pawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\ncastle ::= \"O-O\" \"-O\"?",
    );
    check(&moves, &["1. e4 e5\n2. Nf3 O-O-O+\n"], &["1. e4 e5\n", "1. e9 e5\n", "2. e4 e5\n"]);
    check(
        &gbnf("root ::= item+\nitem ::= \"- \" [^\\r\\n\\u2028]+ \"\\n\""),
        &["- a\n", "- é 🦀\n- b\n"],
        &["- \n", "a"],
    );
}

#[test]
fn gbnf_parses_like_a_parser_and_not_like_a_lexer() {
    // Matched pairs, an even number of letters inside recursion, and a name that a keyword begins.
    check(&gbnf("root ::= \"a\" root \"b\" | \"\""), &["", "ab", "aaabbb"], &["aab", "ba"]);
    check(&gbnf("root ::= \"a\" root \"a\" | \"b\""), &["b", "aba", "aabaa"], &["ab", "abaa"]);
    check(&gbnf("root ::= x | \"(\" root \")\"\nx ::= \"a\"* \"ab\""), &["ab", "aaab", "((ab))"], &["a", "(aa)"]);
    check(&gbnf("root ::= root \"+\" n | n\nn ::= [0-9]+"), &["1", "1+22+3"], &["+1", "1+"]);
}

#[test]
fn what_cannot_be_used_is_refused_with_what_and_where() {
    check_invalid(&schema(json!({"type": "strnig"})), &["JSON schema", "strnig"]);
    check_invalid(&schema(json!({"type": "object", "properties": {"a": {"not": {}}}})), &["not"]);
    check_invalid(&schema(json!({"type": "array", "uniqueItems": true})), &["uniqueItems"]);
    check_invalid(&schema(json!({"$ref": "#/$defs/missing"})), &["missing"]);
    check_invalid(&schema(json!({"type": "string", "pattern": "("})), &["JSON schema"]);
    check_invalid(&schema(json!({"type": "integer", "minimum": 5, "maximum": 4})), &["JSON schema"]);
    check_invalid(&schema(json!([1])), &["object"]);
    check_invalid(&regex("("), &["regex"]);
    check_invalid(&regex("(?=a)b"), &["look-around"]);
    check_invalid(&GrammarSpec::Choice(vec![]), &["choice"]);
    check_invalid(&GrammarSpec::Choice(vec![String::new()]), &["choice", "empty"]);
    check_invalid(&GrammarSpec::Lark("start: missing".to_owned()), &["grammar", "missing"]);
    check_invalid(&GrammarSpec::Lark("start: \"a".to_owned()), &["grammar"]);
    check_invalid(&GrammarSpec::Lark("start: <[5]>".to_owned()), &["only text"]);
    check_invalid(&GrammarSpec::Lark(String::new()), &["grammar"]);
    check_invalid(&gbnf("root ::= root"), &["GBNF grammar"]);
    check_invalid(&GrammarSpec::Lark("start: start".to_owned()), &["grammar"]);
    check_invalid(&gbnf("root ::= nope"), &["GBNF grammar", "line 1", "nope"]);
}

#[test]
fn two_thousand_optional_properties_work_and_more_are_refused() {
    let object = |num: usize, required: &[&str]| {
        let pattern = |n: usize| (format!("p{n}"), json!({"type": "string", "pattern": format!("^a{n}[b-z]+$")}));
        let properties: serde_json::Map<String, Value> = (0..num).map(pattern).collect();
        json!({"type": "array", "items": {"type": "object", "properties": properties, "required": required}})
    };
    check(
        &schema(object(2000, &[])),
        &[r#"[{"p0": "a0bcd", "p7": "a7bb"}, {"p1999": "a1999c"}]"#],
        &[r#"[{"p1": "a"}]"#],
    );
    check_invalid(
        &schema(object(2001, &[])),
        &["JSON schema", "2001 properties that are not required", "at most 2000"],
    );
    assert!(compiler().compile(&schema(object(2001, &["p3"])), &[]).is_ok());
    // Whatever else leads to as many ways to go on is named as what it is.
    let many = (0..9000).map(|n| format!("r{n}")).collect::<Vec<_>>();
    let rules: String = many.iter().map(|name| format!("{name}: \"{name}\" start?\n")).collect();
    check_invalid(&GrammarSpec::Lark(format!("start: {}\n{rules}", many.join(" | "))), &["grammar", "too many ways"]);
}

#[test]
fn hostile_specifications_end_in_an_error_or_a_grammar_and_never_in_a_crash() {
    let deep = (0..1000).fold(json!({"type": "null"}), |inner, _| json!({"items": inner}));
    check_invalid(&schema(deep), &["levels deep"]);
    let wide: serde_json::Map<String, Value> =
        (0..40_000).map(|n| (format!("property number {n}"), json!({"type": "string"}))).collect();
    check_invalid(&schema(json!({"properties": wide})), &["bytes"]);
    check_invalid(&regex(&"(".repeat(100_000)), &["nested"]);
    check_invalid(&regex(&"a".repeat(2_000_000)), &["bytes"]);
    check_invalid(&GrammarSpec::Lark(format!("start: {}", "(".repeat(50_000))), &["nested"]);
    let properties: serde_json::Map<String, Value> =
        (0..2000).map(|n| (format!("p{n}"), json!({"type": "string", "pattern": format!("^a{n}[b-z]+$")}))).collect();
    let others = [
        schema(json!({"properties": properties})),
        schema(json!({"$ref": "#"})),
        schema(json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})),
        schema(json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}]})),
        schema(
            json!({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"items": {"$ref": "#/$defs/a"}}]}}, "$ref": "#/$defs/a"}),
        ),
        schema(json!({"$ref": "http://example.com/schema.json"})),
        schema(json!({"type": "string", "minLength": 4_000_000_000_u64})),
        schema(json!({"type": "array", "minItems": 1_000_000, "items": {"type": "array", "minItems": 1_000_000}})),
        schema(json!({"type": "string", "pattern": "((((a{1,100}){1,100}){1,100}){1,100}){1,100}"})),
        schema(json!({"type": "number", "multipleOf": 1e-300})),
        regex("((((((a?){1000}){1000}){1000}){1000}){1000})"),
        regex("(.*a.{500})*(.*b.{500})*(.*c.{500})*"),
        regex("[\\s\\S]*(a|b|c|d)[\\s\\S]{200}(a|b)[\\s\\S]{300}"),
        regex("\\p{L}{1,5000}\\p{Greek}{1,5000}"),
        GrammarSpec::Lark("start: start".to_owned()),
        GrammarSpec::Lark("start: start start | \"a\" | \"\"".to_owned()),
        GrammarSpec::Lark("start: A\nA: B\nB: A".to_owned()),
        GrammarSpec::Lark("start: (((\"a\"*)*)*)*".to_owned()),
        GrammarSpec::Lark("start: \"a\"{100000000}".to_owned()),
        GrammarSpec::Lark("start: %json {\"type\": ".to_owned()),
        GrammarSpec::Lark("%import common.NUMBER\nstart: NUMBER".to_owned()),
        gbnf("root ::= root"),
        gbnf("root ::= root root | \"a\" | \"\""),
        gbnf("root ::= ((([a-z]*)*)*)* root?"),
    ];
    for spec in others {
        let outcome = compiler().compile(&spec, &[]);
        let followed = outcome.and_then(|mut grammar| {
            let mut mask = grammar.empty_mask();
            for _ in 0..50 {
                if grammar.is_finished() {
                    break;
                }
                grammar.mask(&mut mask)?;
                let Some(token) = mask.tokens().find(|&token| token < 256) else { break };
                grammar.accept(token)?;
            }
            Ok(())
        });
        if let Err(error) = followed {
            assert!(error.is_clients_mistake() || matches!(error, GrammarError::Stuck(_)), "{spec:?}: {error}");
            assert!(error.to_string().len() < 700, "{error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn no_text_makes_a_grammar_panic(text in "[a-z:=|\"\\[\\](){}*+?/<>%#^.\\\\\n -]{0,60}") {
        for spec in [
            GrammarSpec::Regex(text.clone()),
            GrammarSpec::Lark(format!("start: {text}")),
            GrammarSpec::Gbnf(format!("root ::= {text}")),
        ] {
            if let Err(error) = compiler().compile(&spec, &[]) {
                prop_assert!(error.is_clients_mistake(), "{:?}: {}", spec, error);
            }
        }
    }
}

#[test]
fn ends_are_allowed_exactly_where_the_grammar_may_end_and_control_tokens_nowhere() {
    let tokenizer = open(&TinyModel::default().to_gguf());
    let ends = tokenizer.end_of_generation();
    let mut grammar = compile(&regex("(ab)*(.|\\n)?"));
    let mut mask = grammar.empty_mask();
    for (byte, may_end) in [(b'a', true), (b'b', true), (b'x', true)] {
        grammar.mask(&mut mask).unwrap();
        assert!(ends.iter().all(|&end| mask.contains(end) == may_end), "before {:?}", char::from(byte));
        let is_text = |token: u32| token < 256 + taper_testkit::vocab::MERGES.len() as u32 || ends.contains(&token);
        assert!(mask.tokens().all(is_text));
        grammar.accept(byte.into()).unwrap();
    }
    grammar.mask(&mut mask).unwrap();
    assert_eq!(mask.tokens().collect::<Vec<_>>(), ends, "finished");
    let mut grammar = compile(&regex("ab"));
    assert_eq!(grammar.accept(ends[0]), Err(GrammarError::Refused(ends[0])));
    assert_eq!(grammar.accept(u32::MAX), Err(GrammarError::Refused(u32::MAX)));
    assert!(accepts(&mut grammar, "ab"), "a refused token changes nothing");
}

#[test]
fn tokens_are_taken_back_one_by_one_and_clones_are_independent() {
    let text = r#"{"a": [1, 22], "b": "xyz"}"#;
    let spec =
        schema(json!({"properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {"type": "string"}}}));
    let mut grammar = compile(&spec);
    let mut masks = Vec::new();
    let mut mask = grammar.empty_mask();
    let end = open(&TinyModel::default().to_gguf()).eos().unwrap();
    for token in text.bytes().map(u32::from).chain([end]) {
        grammar.mask(&mut mask).unwrap();
        masks.push(mask.clone());
        grammar.accept(token).unwrap();
    }
    assert!(grammar.is_finished());
    let clone = grammar.clone();
    for num in [1, 2, 3, 7] {
        grammar.rollback(num).unwrap();
        grammar.mask(&mut mask).unwrap();
        assert_eq!(mask, masks[grammar.num_accepted()], "{} tokens left", grammar.num_accepted());
    }
    grammar.rollback(grammar.num_accepted()).unwrap();
    assert!(accepts(&mut grammar, text));
    assert!(clone.is_finished() && clone.num_accepted() == masks.len());
}

#[test]
fn a_mask_behind_what_was_taken_back_is_not_that_of_another_text_as_long() {
    let lark = "start: \"(\" NUMBER (\")\" | \"}\") | \"[\" NUMBER (\"]\" | \"!\")\nNUMBER: /[0-9]+/\n";
    let mut grammar = compile(&GrammarSpec::Lark(lark.to_owned()));
    let mut mask = grammar.empty_mask();
    for (text, closing) in [("(1", ")}"), ("[1", "!]"), ("(1", ")}")] {
        text.bytes().for_each(|byte| grammar.accept(byte.into()).unwrap());
        grammar.mask(&mut mask).unwrap();
        let allowed: String = ")}!]".chars().filter(|&char| mask.contains(char.into())).collect();
        assert_eq!(allowed, closing, "behind {text}");
        grammar.rollback(2).unwrap();
    }
}

/// Chooses the first of `wanted` that the mask has; without any, ends the answer if it may, or else takes the least token.
fn greedy(grammar: &mut Grammar, wanted: &[u8]) -> String {
    let mut mask = grammar.empty_mask();
    let mut text = String::new();
    while !grammar.is_finished() && text.len() < 2000 {
        grammar.mask(&mut mask).unwrap();
        let wanted = wanted.iter().map(|&byte| u32::from(byte)).find(|&byte| mask.contains(byte));
        let token = match wanted {
            Some(token) => token,
            None if grammar.may_end() => break,
            None => mask.tokens().next().unwrap(),
        };
        grammar.accept(token).unwrap();
        text.push(char::from(token as u8));
    }
    text
}

#[test]
fn a_number_ends_however_much_the_model_likes_a_digit() {
    let check = |value: Value, wanted: &[u8], expected: &str| {
        let text = greedy(&mut compile(&schema(value.clone())), wanted);
        assert_eq!(text, expected, "{value}");
    };
    check(json!({"type": "integer"}), b"7", "777777777777777777777777");
    check(json!({"type": "number"}), b".0", "0.00000000000000000000000");
    check(json!({"type": "number"}), b"9e", "999999999999999999999999e99");
    check(json!({"type": "array", "items": {"type": "number"}, "maxItems": 2}), b"1]", "[111111111111111111111111]");
    let mut object = compile(&GrammarSpec::JsonObject);
    let mut mask = object.empty_mask();
    for (text, is_free) in [("{\"a\": 1", true), ("11111111111111111111111", false)] {
        text.bytes().for_each(|byte| object.accept(byte.into()).unwrap());
        object.mask(&mut mask).unwrap();
        assert!(mask.contains(b'1'.into()) == is_free && mask.contains(b'}'.into()), "behind {text}");
    }
    // What the schema asks for is written, be it longer.
    let tiny = json!({"type": "number", "minimum": 1e-40, "maximum": 2e-40});
    let text = greedy(&mut compile(&schema(tiny)), b"0");
    assert!(text.len() > 40 && text.parse::<f64>().is_ok_and(|value| (1e-40..=2e-40).contains(&value)), "{text}");
    // And what a client, a guess or a forced token says is taken.
    let zeros = format!("0.{}", "0".repeat(60));
    assert!(zeros.bytes().all({
        let mut grammar = compile(&schema(json!({"type": "number"})));
        move |byte| grammar.accept(byte.into()).is_ok()
    }));
}

#[test]
fn a_recursive_type_ends_however_much_the_model_likes_to_go_down() {
    let tree = json!({
        "$defs": {"tree": {
            "type": "object", "required": ["children"],
            "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
        }},
        "$ref": "#/$defs/tree",
    });
    let text = greedy(&mut compile(&schema(tree.clone())), b"{[]}");
    assert_eq!(text, format!("{}{}", "{\"children\": [".repeat(16), "]}".repeat(16)));
    // Taken back, the same choices are there again.
    let mut grammar = compile(&schema(tree));
    text.bytes().take(14 * 16).for_each(|byte| grammar.accept(byte.into()).unwrap());
    let brackets = |grammar: &mut Grammar| {
        let mut mask = grammar.empty_mask();
        grammar.mask(&mut mask).unwrap();
        [b'{', b']'].map(|byte| mask.contains(byte.into()))
    };
    assert_eq!(brackets(&mut grammar), [false, true]);
    grammar.rollback(14).unwrap();
    assert_eq!(brackets(&mut grammar), [true, true]);
    // Required levels are written, however many they are.
    let deep = (0..40).fold(
        json!({"type": "integer"}),
        |inner, _| json!({"type": "array", "items": inner, "minItems": 1, "maxItems": 2}),
    );
    let text = greedy(&mut compile(&schema(deep)), b"[]");
    assert!(text.starts_with(&"[".repeat(40)) && text.ends_with(&"]".repeat(40)), "{text}");
}

#[test]
fn forced_tokens_are_the_usual_ones_and_leave_a_choice_where_there_is_one() {
    let file = TinyModel::default().to_gguf();
    let tokenizer = open(&file);
    let piece = |tokens: &[u32]| tokenizer.decode(tokens, false);
    let mut grammar = compile(&GrammarSpec::Choice(vec!["q the hello q1".to_owned(), "q the hello q2".to_owned()]));
    let forced = grammar.forced().unwrap();
    assert_eq!(piece(&forced), "q the hello q");
    assert_eq!(forced, tokenizer.encode("q the hello q", taper_text::EncodeOptions::default()).unwrap());
    for token in forced {
        grammar.accept(token).unwrap();
    }
    assert!(grammar.forced().unwrap().is_empty());
    // "hel" may go on to "hello", which is one token, so its letters are not forced.
    let mut grammar = compile(&GrammarSpec::Choice(vec!["hello".to_owned(), "hell".to_owned()]));
    assert!(grammar.forced().unwrap().is_empty());
}

#[test]
fn the_same_specification_is_compiled_once() {
    let compiler = GrammarCompiler::new(open(&TinyModel::default().to_gguf()));
    let spec = schema(json!({"type": "integer"}));
    let mut used = compiler.compile(&spec, &[]).unwrap();
    assert!(accepts(&mut used, "12"));
    let mut fresh = compiler.compile(&spec, &[]).unwrap();
    assert_eq!(fresh.num_accepted(), 0);
    assert!(accepts(&mut fresh, "-7"));
}

/// `<unk>`, `<s>`, `</s>`, 256 bytes, pieces with and without a blank, and a token that a user added.
fn sentence_piece(adds_blank: bool) -> Vec<u8> {
    let pieces = ["▁", "a", "▁a", "1", "▁1", "aa"];
    let mut pieces: Vec<(&str, i32, f32)> = (1..).zip(pieces).map(|(rank, piece)| (piece, 1, -(rank as f32))).collect();
    pieces.push(("<tool>", 4, 0.0));
    taper_testkit::vocab::sentence_piece(&pieces).bool("tokenizer.ggml.add_space_prefix", adds_blank).build()
}

#[test]
fn sentence_piece_spells_its_own_blank_where_an_answer_begins_a_text() {
    let allowed = |tokenizer: &Tokenizer, grammar: &mut Grammar| -> Vec<String> {
        let mut mask = grammar.empty_mask();
        grammar.mask(&mut mask).unwrap();
        mask.tokens().map(|token| tokenizer.token_text(token).unwrap().to_owned()).collect()
    };
    let tokenizer = open(&sentence_piece(true));
    let compiler = GrammarCompiler::new(Arc::clone(&tokenizer));
    let spec = regex("a[1a]");
    // Behind <s> the tokenizer's blank is still to come; the detokenizer drops it again. Behind text there is none.
    let mut begins = compiler.compile(&spec, &[1]).unwrap();
    assert_eq!(allowed(&tokenizer, &mut begins), ["<0x20>", "▁", "▁a"]);
    let blank_a = tokenizer.encode("a", taper_text::EncodeOptions::default()).unwrap();
    blank_a.iter().for_each(|&token| begins.accept(token).unwrap());
    assert_eq!(allowed(&tokenizer, &mut begins), ["<0x31>", "<0x61>", "a", "1"]);
    let mut continues = compiler.compile(&spec, &[1, blank_a[0]]).unwrap();
    assert_eq!(allowed(&tokenizer, &mut continues), ["<0x61>", "a", "aa"]);
    // Without a prefix, a text begins as it continues; and a user's token is text like any other.
    let tokenizer = open(&sentence_piece(false));
    let compiler = GrammarCompiler::new(Arc::clone(&tokenizer));
    let mut plain = compiler.compile(&regex("<tool>|<t"), &[1]).unwrap();
    assert_eq!(allowed(&tokenizer, &mut plain), ["<0x3C>", "<tool>"]);
}
