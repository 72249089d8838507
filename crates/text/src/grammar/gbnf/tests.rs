use super::*;

/// The Lark of a grammar, without the names' numbers.
fn check(text: &str, expected: &str) {
    assert_eq!(to_lark(text).unwrap(), expected, "{text}");
}

fn check_refused(text: &str, parts: &[&str]) {
    let error = to_lark(text).expect_err("should be refused").to_string();
    for part in parts {
        assert!(error.contains(part), "no {part:?} in: {error}");
    }
}

#[test]
fn a_regular_grammar_is_one_lexeme() {
    check("root ::= \"ab\" digit+ | .\ndigit ::= [0-9]", "start: /(?:ab(?:[0-9]){1,}|(?s:.))/\n");
    check("root ::= [^a\\n-]? \"\\x41\\u00e9\"", "start: /(?:[^a\\x{A}\\x{2D}]){0,1}A\\x{E9}/\n");
    check(
        "root ::= x{2} x{1,} x{0,3} # end\nx ::= \"-\"",
        "start: /(?:\\x{2D}){2,2}(?:\\x{2D}){1,}(?:\\x{2D}){0,3}/\n",
    );
}

#[test]
fn recursive_rules_stay_rules_and_what_is_between_them_is_lexemes() {
    check(
        "root ::= \"(\" ws root ws \")\" | [a-z]+\nws ::= \" \"*",
        "start: g0_root\ng0_root: (/\\x{28}(?:\\x{20}){0,}/ g0_root /(?:\\x{20}){0,}\\x{29}/ | /(?:[a-z]){1,}/)\n",
    );
}

#[test]
fn a_stretch_that_what_follows_could_continue_is_taken_apart() {
    // The line break belongs to the rule's end or to the blanks: only a parser knows.
    check(
        "root ::= term \"\\n\"\nterm ::= [0-9]+ ws | \"(\" term \")\"\nws ::= [ \\n]*",
        "start: g0_root\ng0_root: g1_term /\\x{A}/\n\
         g1_term: (/(?:[0-9]){1,}/ g2_ws | /\\x{28}/ g1_term /\\x{29}/)\n\
         g2_ws: (/[\\x{20}\\x{A}]/)*\n",
    );
}

#[test]
fn mistakes_are_refused_with_their_line() {
    check_refused("", &["line 1", "begins with a rule"]);
    check_refused("x ::= \"a\"", &["no rule \"root\""]);
    check_refused("root ::= \"a\"\n  | b", &["line 2", "\"b\" is not defined"]);
    check_refused("root ::= \"a\"\nroot ::= \"b\"", &["line 2", "defined twice"]);
    check_refused("root ::= (\"a\"", &["line 1", "not closed"]);
    check_refused("root ::= \"a\")", &["line 1", "out of place"]);
    check_refused("root ::= \"a", &["line 1", "string is not closed"]);
    check_refused("root ::= [a", &["class is not closed"]);
    check_refused("root ::= [z-a]", &["no range"]);
    check_refused("root ::= []", &["empty"]);
    check_refused("root ::= * \"a\"", &["nothing to repeat"]);
    check_refused("root ::= \"a\"{3,2}", &["{3,2}", "no repetition"]);
    check_refused("root ::= \"a\"{9999}", &["9999", "up to 2000"]);
    check_refused("root ::= \"\\q\"", &["\\q is no escape"]);
    check_refused("root ::= \"\\ud800\"", &["d800", "not the code"]);
    check_refused("root ::= <think> \"a\"", &["line 1", "only text"]);
    check_refused("root ::= !<[5]>", &["only text"]);
}

#[test]
fn rules_that_double_are_refused_before_they_fill_memory() {
    let doubling: String = (0..64).map(|n| format!("r{n} ::= r{m} r{m}\n", m = n + 1)).collect();
    check_refused(&format!("root ::= r0\n{doubling}r64 ::= \"a\""), &["grows beyond"]);
}
