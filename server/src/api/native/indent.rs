//! `n_indent`: an answer ends where a line after its first begins with fewer blanks, as in llama-server. Blanks are spaces and
//! tabs; an empty line has none.

/// Follows the text of one choice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Indent {
    least: usize,
    place: Place,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    /// In a line that is indented enough, or in the first.
    Line,
    /// Behind so many blanks of a line.
    Blanks(usize),
}

impl Indent {
    /// At the beginning of a text; `None` where any line may follow.
    pub(super) fn new(least: usize) -> Option<Indent> {
        (least > 0).then_some(Indent { least, place: Place::Line })
    }

    /// Where more of the text ends, if a line in it has too few blanks: behind those that it has.
    pub(super) fn end_of(&mut self, text: &str) -> Option<usize> {
        for (at, letter) in text.char_indices() {
            self.place = match (self.place, letter) {
                (Place::Blanks(num), ' ' | '\t') => Place::Blanks(num + 1),
                (Place::Blanks(num), _) if num < self.least => return Some(at),
                (_, '\n') => Place::Blanks(0),
                _ => Place::Line,
            };
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(least: usize, pieces: &[&str], expected: &str) {
        let mut indent = Indent::new(least).expect("some blanks are asked for");
        let mut text = String::new();
        for piece in pieces {
            match indent.end_of(piece) {
                Some(at) => {
                    text.push_str(&piece[..at]);
                    break;
                }
                None => text.push_str(piece),
            }
        }
        assert_eq!(text, expected, "{pieces:?}");
    }

    #[test]
    fn a_line_with_too_few_blanks_ends_the_text_however_it_is_cut() {
        check(2, &["a\n  b\n c\n"], "a\n  b\n ");
        check(2, &["a", "\n", " ", " b", "\n", " ", "c"], "a\n  b\n ");
        check(1, &["a\n\tb\nc"], "a\n\tb\n");
        check(4, &["def f():\n    é\n\n    more"], "def f():\n    é\n");
        check(1, &["no lines at all"], "no lines at all");
        assert!(Indent::new(0).is_none());
    }
}
