//! Markdown on a terminal, as it streams: headings, lists, bold, italics, code spans and fenced code get a look, and their
//! marks stay, dimmed. So no text is lost, whatever a model means by an asterisk: without its escape sequences the output is the
//! input, character by character, but for control characters, which are shown instead of obeyed.
//!
//! A [`Renderer`] reads one character at a time, so how a text is cut changes nothing. What it holds back is a run of marks, or
//! the line of a fence: never more than a line.

use crate::color::{Look, RESET};
use crate::output::is_bidi_control;

/// How a text is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    /// As it is: to a pipe or a file.
    Plain,
    /// With control characters spelled out: to a terminal without colours.
    Safe,
    /// That, and with a look.
    Styled,
}

/// One text on its way to the reader.
#[derive(Debug)]
pub(crate) struct Renderer {
    shown: Shown,
    block: Block,
    spans: Spans,
    /// What is held back until it is known what it is.
    held: String,
    /// The character before, of those that are not marks.
    last: char,
    /// Whether the next character is meant as it stands.
    is_escaped: bool,
    /// What the terminal was told last.
    look: Look,
}

/// Where in a block the reader is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    /// At the beginning of a line, perhaps behind blanks; `held` has the first marks.
    LineStart,
    /// In a line of text.
    Text,
    /// In a heading.
    Heading,
    /// In the first line of what may be fenced code, behind its marks; `held` has all of it that is not shown yet.
    FenceLine { mark: char, len: usize },
    /// At the beginning of a line of code; `held` has what may be the closing fence.
    CodeStart { mark: char, len: usize },
    /// In a line of code.
    Code { mark: char, len: usize },
}

/// What is open in a line of text.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Spans {
    is_bold: bool,
    is_italic: bool,
    /// Backticks that close the code span.
    code: Option<usize>,
}

impl Renderer {
    pub(crate) fn new(shown: Shown) -> Renderer {
        Renderer {
            shown,
            block: Block::LineStart,
            spans: Spans::default(),
            held: String::new(),
            last: '\n',
            is_escaped: false,
            look: Look::default(),
        }
    }

    /// Behind a text that was shown to its end, and goes on.
    pub(crate) fn behind(shown: Shown, text: &str) -> Renderer {
        let mut renderer = Renderer::new(shown);
        renderer.push(text);
        // A fence that was cut behind its marks goes on as one.
        if let (Block::LineStart, Some(mark @ ('`' | '~'))) = (renderer.block, renderer.held.chars().next())
            && renderer.held.len() >= 3
        {
            renderer.block = Block::FenceLine { mark, len: renderer.held.len() };
        }
        // The end of that text showed what was held, and gave the terminal its own look.
        renderer.held.clear();
        renderer.look = Look::default();
        renderer
    }

    /// Reads more of the text; what can be shown by now.
    pub(crate) fn push(&mut self, text: &str) -> String {
        match self.shown {
            Shown::Plain => text.to_owned(),
            Shown::Safe => visible(text),
            Shown::Styled => {
                let mut out = String::with_capacity(text.len() * 2);
                text.chars().for_each(|c| self.read(c, &mut out));
                out
            }
        }
    }

    /// Ends the text; what was held back, and the terminal's own look again.
    pub(crate) fn finish(&mut self) -> String {
        let mut out = String::new();
        self.release(&mut out);
        if self.look != Look::default() {
            out.push_str(RESET);
        }
        *self = Renderer::new(self.shown);
        out
    }

    fn read(&mut self, c: char, out: &mut String) {
        match self.block {
            Block::LineStart => self.read_line_start(c, out),
            Block::Text | Block::Heading => self.read_text(c, out),
            Block::FenceLine { mark, len } => self.read_fence_line(c, mark, len, out),
            Block::CodeStart { mark, len } => self.read_code_start(c, mark, len, out),
            Block::Code { mark, len } => {
                self.write_code(c, out);
                if c == '\n' {
                    self.block = Block::CodeStart { mark, len };
                }
            }
        }
    }

    /// Finds out what kind of line begins.
    fn read_line_start(&mut self, c: char, out: &mut String) {
        let first = self.held.chars().next();
        let is_digits = self.held.ends_with(|last: char| last.is_ascii_digit());
        match (first, c) {
            (None, ' ' | '\t' | '\n') => self.write(c, Look::default(), out),
            (None, '#' | '`' | '~' | '-' | '*' | '+' | '>') => self.held.push(c),
            (None, '0'..='9') => self.held.push(c),
            (Some('#'), '#') if self.held.len() < 6 => self.held.push(c),
            (Some(mark @ ('`' | '~')), _) if c == mark => self.held.push(c),
            (Some('0'..='9'), '0'..='9') if self.held.len() < 9 => self.held.push(c),
            (Some('0'..='9'), '.' | ')') if is_digits => self.held.push(c),
            (Some('#'), ' ') => {
                self.release_as(Look::MARK, out);
                self.block = Block::Heading;
                self.write(c, Look::HEADING, out);
            }
            (Some('-' | '*' | '+'), ' ' | '\t') => self.begin_item(c, out),
            (Some('0'..='9'), ' ' | '\t') if !is_digits => self.begin_item(c, out),
            (Some('>'), _) => {
                self.release_as(Look::MARK, out);
                self.read(c, out);
            }
            (Some(mark @ ('`' | '~')), _) if self.held.len() >= 3 => {
                self.block = Block::FenceLine { mark, len: self.held.len() };
                self.read(c, out);
            }
            _ => self.begin_text(c, out),
        }
    }

    /// The mark of an item of a list; what follows may be a heading, code or another list.
    fn begin_item(&mut self, blank: char, out: &mut String) {
        self.release_as(Look::ITEM, out);
        self.write(blank, Look::default(), out);
    }

    /// It is a line of text after all, and what was held belongs to it.
    fn begin_text(&mut self, c: char, out: &mut String) {
        self.block = Block::Text;
        self.last = '\n';
        let held = std::mem::take(&mut self.held);
        held.chars().for_each(|c| self.read_text(c, out));
        self.read_text(c, out);
    }

    fn read_text(&mut self, c: char, out: &mut String) {
        if self.held.starts_with(c) && matches!(c, '*' | '_' | '`') && !self.is_escaped {
            self.held.push(c);
            return;
        }
        self.end_run(Some(c), out);
        if self.is_escaped {
            self.is_escaped = false;
            self.put(c, out);
            return;
        }
        let is_code = self.spans.code.is_some();
        match c {
            '`' => self.held.push(c),
            '*' | '_' if !is_code => self.held.push(c),
            '\\' if !is_code => {
                self.is_escaped = true;
                self.put(c, out);
            }
            _ => self.put(c, out),
        }
    }

    /// A character of a line of text.
    fn put(&mut self, c: char, out: &mut String) {
        self.last = c;
        if c == '\n' {
            // What is open at the end of a line was no mark; a stray one colours a line at most.
            self.spans = Spans::default();
            self.block = Block::LineStart;
            self.is_escaped = false;
        }
        let look = if c == '\n' { Look::default() } else { self.current() };
        self.write(c, look, out);
    }

    /// A run of marks has ended before `next`: opens or closes what they mean.
    fn end_run(&mut self, next: Option<char>, out: &mut String) {
        let Some(mark) = self.held.chars().next() else { return };
        let len = self.held.len();
        let next = next.unwrap_or('\n');
        if mark == '`' {
            let is_end = self.spans.code == Some(len);
            let look = if self.spans.code.is_some() && !is_end { Look::CODE } else { Look::MARK };
            self.release_as(look, out);
            match self.spans.code {
                None => self.spans.code = Some(len),
                Some(_) if is_end => self.spans.code = None,
                Some(_) => {}
            }
            self.last = mark;
            return;
        }
        let is_word = |c: char| c.is_alphanumeric();
        // An underscore within a word is part of a name.
        let may_open = !next.is_whitespace() && (mark == '*' || !is_word(self.last));
        let may_close = !self.last.is_whitespace() && (mark == '*' || !is_word(next));
        let (bold, italic) = match len {
            1 => (false, true),
            2 => (true, false),
            3 => (true, true),
            _ => (false, false),
        };
        let closes = may_close && (!bold || self.spans.is_bold) && (!italic || self.spans.is_italic) && len <= 3;
        let opens =
            !closes && may_open && (!bold || !self.spans.is_bold) && (!italic || !self.spans.is_italic) && len <= 3;
        let look = if closes || opens { Look::MARK } else { self.current() };
        self.release_as(look, out);
        if closes || opens {
            self.spans.is_bold = if bold { opens } else { self.spans.is_bold };
            self.spans.is_italic = if italic { opens } else { self.spans.is_italic };
        }
        self.last = mark;
    }

    /// The first line of fenced code, or a line that begins with a code span.
    fn read_fence_line(&mut self, c: char, mark: char, len: usize, out: &mut String) {
        if c == '\n' {
            self.release_as(Look::MARK, out);
            self.write(c, Look::default(), out);
            self.block = Block::CodeStart { mark, len };
        } else if c == '`' && mark == '`' {
            self.begin_text(c, out);
        } else {
            self.held.push(c);
        }
    }

    fn read_code_start(&mut self, c: char, mark: char, len: usize, out: &mut String) {
        let num_marks = self.held.trim_start().chars().take_while(|c| *c == mark).count();
        let has_ended = self.held.ends_with([' ', '\t']) && num_marks > 0;
        match c {
            '\n' if num_marks >= len => {
                self.release_as(Look::MARK, out);
                self.write(c, Look::default(), out);
                self.block = Block::LineStart;
            }
            ' ' | '\t' => self.held.push(c),
            _ if c == mark && !has_ended => self.held.push(c),
            _ => {
                self.release_as(Look::CODE, out);
                self.write_code(c, out);
                self.block = if c == '\n' { Block::CodeStart { mark, len } } else { Block::Code { mark, len } };
            }
        }
    }

    /// Shows what is held, as what it is at the end of the text.
    fn release(&mut self, out: &mut String) {
        match self.block {
            Block::Text | Block::Heading => self.end_run(None, out),
            Block::LineStart => self.release_as(Look::default(), out),
            Block::FenceLine { .. } => self.release_as(Look::MARK, out),
            Block::CodeStart { mark, len } => {
                let is_end = self.held.trim().len() >= len && self.held.trim().chars().all(|c| c == mark);
                self.release_as(if is_end { Look::MARK } else { Look::CODE }, out);
            }
            Block::Code { .. } => {}
        }
    }

    fn release_as(&mut self, look: Look, out: &mut String) {
        let held = std::mem::take(&mut self.held);
        held.chars().for_each(|c| self.write(c, look, out));
    }

    fn current(&self) -> Look {
        let Spans { is_bold, is_italic, code } = self.spans;
        if code.is_some() {
            return Look::CODE;
        }
        let base = if self.block == Block::Heading { Look::HEADING } else { Look::default() };
        Look { is_bold: base.is_bold || is_bold, is_italic, ..base }
    }

    fn write_code(&mut self, c: char, out: &mut String) {
        self.write(c, if c == '\n' { Look::default() } else { Look::CODE }, out);
    }

    /// Shows a character, and tells the terminal how where that changes. Blanks look alike.
    fn write(&mut self, c: char, look: Look, out: &mut String) {
        if look != self.look && (c == '\n' || !c.is_whitespace()) {
            look.change_from(self.look, out);
            self.look = look;
        }
        show(c, out);
    }
}

/// A text whose control characters are shown.
pub(crate) fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    text.chars().for_each(|c| show(c, &mut out));
    out
}

/// Shows a control character as its picture, or by its number where it has none: an answer must not steer the terminal. Line ends
/// and tabs are what they are.
fn show(c: char, out: &mut String) {
    match c {
        '\n' | '\t' => out.push(c),
        '\0'..='\x1f' => out.push(char::from_u32(0x2400 + u32::from(c)).unwrap_or('\u{fffd}')),
        '\x7f' => out.push('\u{2421}'),
        '\u{80}'..='\u{9f}' => out.push('\u{fffd}'),
        _ if is_bidi_control(c) => out.extend(c.escape_unicode()),
        _ => out.push(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rendered(text: &str) -> String {
        let mut renderer = Renderer::new(Shown::Styled);
        renderer.push(text) + &renderer.finish()
    }

    /// The output with names instead of escape sequences: `{b}` bold, `{i}` italics, `{c}` code, `{h}` heading, `{m}` mark, `{l}`
    /// mark of a list, `{.}` the terminal's own.
    fn looks(text: &str) -> String {
        named(&rendered(text))
    }

    fn named(output: &str) -> String {
        let mut out = output.replace(RESET, "{.}");
        for (look, name) in [
            (Look::MARK, "{m}"),
            (Look::ITEM, "{l}"),
            (Look::CODE, "{c}"),
            (Look::HEADING, "{h}"),
            (Look { is_bold: true, is_italic: true, ..Look::default() }, "{bi}"),
            (Look { is_bold: true, ..Look::default() }, "{b}"),
            (Look { is_italic: true, ..Look::default() }, "{i}"),
        ] {
            let mut code = String::new();
            look.change_from(Look::default(), &mut code);
            out = out.replace(&code, name);
        }
        out
    }

    /// Without escape sequences, which all are `ESC [ ... m`.
    fn stripped(output: &str) -> String {
        let mut parts = output.split("\x1b[");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| text + part.split_once('m').expect("a whole sequence").1)
    }

    #[test]
    fn marks_get_a_look_and_stay() {
        for (text, expected) in [
            ("plain", "plain"),
            ("a **b** c", "a {m}**{.}{b}b{.}{m}** {.}c"),
            ("*i* _j_", "{m}*{.}{i}i{.}{m}* _{.}{i}j{.}{m}_{.}"),
            ("***x***", "{m}***{.}{bi}x{.}{m}***{.}"),
            ("**a *b* c**", "{m}**{.}{b}a {.}{m}*{.}{bi}b{.}{m}* {.}{b}c{.}{m}**{.}"),
            ("a `b*c*` d", "a {m}`{.}{c}b*c*{.}{m}` {.}d"),
            ("``a`b``", "{m}``{.}{c}a`b{.}{m}``{.}"),
            ("# Title\ntext", "{m}# {.}{h}Title{.}\ntext"),
            ("####### no", "####### no"),
            ("#no", "#no"),
            ("- one\n* two\n10. ten", "{l}- {.}one\n{l}* {.}two\n{l}10. {.}ten"),
            ("> *q*", "{m}> *{.}{i}q{.}{m}*{.}"),
            ("```rust\nlet *a*;\n```\nb", "{m}```rust{.}\n{c}let *a*;{.}\n{m}```{.}\nb"),
            ("~~~\n```\n~~~", "{m}~~~{.}\n{c}```{.}\n{m}~~~{.}"),
        ] {
            assert_eq!(looks(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_text_that_goes_on_does_so_where_it_was() {
        let goes_on = |begun: &str, rest: &str| {
            let mut renderer = Renderer::behind(Shown::Styled, begun);
            renderer.push(rest) + &renderer.finish()
        };
        assert_eq!(named(&goes_on("a\n```rust\nlet ", "*a*;\n```\nb")), "{c}*a*;{.}\n{m}```{.}\nb");
        assert_eq!(named(&goes_on("# T", "itle\ntext")), "{h}itle{.}\ntext");
        // Its marks were forgotten: any line ended the code, and what came behind it was code.
        let code = "{.}\n{c}x = 1{.}\n\n{c}# not a heading{.}\n{m}```{.}\nafter {m}**{.}{b}bold{.}{m}**{.}";
        let rest = "thon\nx = 1\n\n# not a heading\n```\nafter **bold**";
        assert_eq!(named(&goes_on("Sure:\n```py", rest)), format!("{{m}}thon{code}"));
        assert_eq!(named(&goes_on("Sure:\n```", &format!("py{rest}"))), format!("{{m}}python{code}"));
        let text = "# *T*\n- **b** `c` \\*\n```py\nx\n```\n12. ***d";
        for (at, _) in text.char_indices() {
            let (begun, rest) = text.split_at(at);
            assert_eq!(stripped(&rendered(begun)) + &stripped(&goes_on(begun, rest)), text, "cut at {at}");
        }
    }

    #[test]
    fn what_is_no_mark_has_no_look() {
        for text in ["2 * 3 * 4", "snake_case_name", "a ** b", r"\*not\*", "3.14 is", "-5", "1)x", "+", "\n\n", "****"]
        {
            assert_eq!(rendered(text), text, "{text:?}");
        }
    }

    #[test]
    fn a_stray_mark_colours_no_more_than_its_line() {
        assert!(looks("**open\nnext").ends_with("\nnext"));
        assert!(looks("`open\nnext").ends_with("\nnext"));
    }

    #[test]
    fn nothing_is_held_for_more_than_a_line() {
        let mut renderer = Renderer::new(Shown::Styled);
        for line in ["```` not closed ", "#", "123", "***", "text **"] {
            renderer.push(line);
            let shown = renderer.push("\n");
            assert!(shown.ends_with('\n'), "{line:?}: {shown:?}");
        }
    }

    #[test]
    fn an_answer_cannot_steer_the_terminal() {
        let evil = "\x1b]0;title\x07 \x1b[2J \u{9b}31m \r \x08 \x7f rm\u{202e}x\u{202c}\u{2067}y\u{2069} ok\t\n";
        for shown in [Shown::Safe, Shown::Styled] {
            let mut renderer = Renderer::new(shown);
            let out = renderer.push(evil) + &renderer.finish();
            assert!(!out.contains(|c: char| c.is_control() && c != '\n' && c != '\t'), "{out:?}");
            assert!(!out.contains(is_bidi_control), "{out:?}");
            assert!(out.contains("␛[2J") && out.contains("rm\\u{202e}x\\u{202c}") && out.contains("ok\t\n"), "{out:?}");
        }
        assert_eq!(Renderer::new(Shown::Plain).push(evil), evil, "a pipe gets what was said");
    }

    /// Texts full of marks.
    fn markdown() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just("*".to_owned()),
            Just("**".to_owned()),
            Just("_".to_owned()),
            Just("`".to_owned()),
            Just("```".to_owned()),
            Just("~~~".to_owned()),
            Just("\n".to_owned()),
            Just("# ".to_owned()),
            Just("- ".to_owned()),
            Just("1. ".to_owned()),
            Just("> ".to_owned()),
            Just(" ".to_owned()),
            Just("\\".to_owned()),
            Just("\x1b[31m".to_owned()),
            "\\PC{0,4}",
            Just("\u{202e}".to_owned()),
            any::<char>().prop_map(String::from),
        ];
        proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn how_a_text_is_cut_changes_nothing(text in markdown(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6)) {
            let places: Vec<usize> = (0..=text.len()).filter(|&at| text.is_char_boundary(at)).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| *cut.get(&places)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            for shown in [Shown::Plain, Shown::Safe, Shown::Styled] {
                let mut renderer = Renderer::new(shown);
                let mut out: String = cuts.windows(2).map(|cut| renderer.push(&text[cut[0]..cut[1]])).collect();
                out += &renderer.finish();
                let mut whole = Renderer::new(shown);
                prop_assert_eq!(out, whole.push(&text) + &whole.finish());
            }
        }

        #[test]
        fn no_text_is_lost(text in markdown()) {
            let safe = visible(&text);
            prop_assert_eq!(stripped(&rendered(&text)), &safe[..]);
            let mut plain = Renderer::new(Shown::Plain);
            prop_assert_eq!(plain.push(&text) + &plain.finish(), &text[..]);
            let mut renderer = Renderer::new(Shown::Safe);
            prop_assert_eq!(renderer.push(&text) + &renderer.finish(), safe);
        }

        #[test]
        fn the_terminal_gets_its_own_look_back(text in markdown()) {
            let out = rendered(&text);
            let last = out.rfind("\x1b[").map(|at| &out[at..]);
            prop_assert!(last.is_none_or(|last| last.starts_with(RESET)), "{:?}", out);
        }
    }
}
