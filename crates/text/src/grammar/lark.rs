//! Grammars in `llguidance`'s variant of Lark, and how we write our own specifications in it.

use super::GrammarError;

/// `start` is one of the texts, as one lexeme, so that a text that begins another is no hindrance.
pub(super) fn of_choice(texts: &[String]) -> String {
    let alternatives: Vec<String> = texts.iter().map(|text| string(text)).collect();
    format!("start: CHOICE\nCHOICE: {}\n", alternatives.join(" | "))
}

/// A string literal.
pub(super) fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Refuses tokens by number (`<[151]>`) and by name (`<|im_end|>`): a grammar is about text, and control tokens steer the
/// model. `/<[0-9]>/` and `"<[0-9]>"` are text and stay.
pub(super) fn check_no_token(source: &str) -> Result<(), GrammarError> {
    for (number, line) in (1..).zip(source.lines()) {
        let mut quote = None;
        let mut characters = line.chars().peekable();
        while let Some(letter) = characters.next() {
            match (quote, letter) {
                (Some(_), '\\') => {
                    characters.next();
                }
                (Some(open), _) if letter == open => quote = None,
                (None, '/') if characters.peek() == Some(&'/') => break,
                (None, '#') => break,
                (None, '"' | '/') => quote = Some(letter),
                (None, '<') => {
                    let reason = format!("line {number}: tokens (<...>) are not allowed, only text");
                    return Err(GrammarError::invalid("grammar", reason));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_refused_and_texts_that_look_like_them_are_not() {
        for fine in ["start: \"<[5]>\"", "start: /<[0-9]>/", "start: \"a\" // <[5]>", "start: /a\\/<b/", "# <[5]>"] {
            check_no_token(fine).unwrap();
        }
        for bad in ["start: <[5]>", "start: \"a\\\"\" <|im_end|>", "start: a\na: /x/ <[*]>"] {
            let error = check_no_token(bad).unwrap_err().to_string();
            assert!(error.contains("not allowed, only text"), "{error}");
        }
    }
}
