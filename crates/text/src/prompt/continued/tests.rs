use super::*;
use crate::test_vocabulary;

const THINK: ReasoningMarks = ReasoningMarks { start: "<think>", end: "</think>" };
/// Writes the thoughts of the last answer, and marks without any where it has none, as Qwen's does.
const THINKS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if m.role == 'assistant' and loop.last %}<think>\n{{ (m.reasoning_content or '').strip('\\n') }}\n</think>\n\n\
    {{ m.content.lstrip('\\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
/// Leaves former thoughts out, and begins an answer with its own, as DeepSeek's does.
const OPENS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";

fn tokenizer() -> Tokenizer {
    test_vocabulary::tokenizer(&test_vocabulary::byte_level()).expect("it is sound")
}

fn context() -> RenderContext {
    RenderContext { bos_text: "<s>".into(), eos_text: "</s>".into(), add_generation_prompt: true, ..Default::default() }
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::from_source("test", source).expect("it compiles")
}

/// A message of the user, and one that says and thinks this.
fn said(content: &str, thoughts: Option<&str>) -> Vec<ChatMessage> {
    let last = ChatMessage { reasoning_content: thoughts.map(str::to_owned), ..ChatMessage::new("assistant", content) };
    vec![ChatMessage::new("user", "U"), last]
}

/// The text of the prompt, and whether it ends in thoughts.
fn continued(template: &ChatTemplate, messages: &[ChatMessage]) -> Result<(String, bool), TemplateError> {
    let found = template.continued(&tokenizer(), messages, &context(), Some(THINK))?;
    Ok((found.prompt.text(), found.in_thoughts))
}

fn check(source: &str, messages: &[ChatMessage], expected: &str, in_thoughts: bool) {
    let found = continued(&template(source), messages).expect("it can be continued");
    assert_eq!(found, (expected.to_owned(), in_thoughts), "{messages:?}");
}

fn check_builtin(name: &str, head: &str) {
    let template = ChatTemplate::builtin(name).expect("it compiles");
    // Short ones stand in the marks of the turn too, and a template may trim.
    for text in ["A b", "e", "im", "s", "A b \n", "a\n\nb", "<|im_end|>", "</s>", "\u{100000}", "U"] {
        let found = continued(&template, &said(text, None));
        assert_eq!(found, Ok((format!("{head}{text}"), false)), "{name} {text:?}");
    }
    let (trimmed, kept) = (format!("{head}A b"), format!("{head}  A b"));
    let (found, _) = continued(&template, &said("  A b", None)).expect("it can be continued");
    assert!(found == trimmed || found == kept, "{name}: {found:?}");
}

#[test]
fn builtin_templates_are_cut_behind_the_text_whatever_it_is() {
    check_builtin("chatml", "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n");
    check_builtin(
        "llama3",
        "<s><|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    );
    check_builtin("llama2", "<s>[INST] U [/INST] ");
    check_builtin("mistral", "<s>[INST] U [/INST] ");
    check_builtin("zephyr", "<|user|>\nU</s>\n<|assistant|>\n");
    check_builtin("vicuna", "<s>USER: U\nASSISTANT: ");
    check_builtin("alpaca", "### Instruction:\nU\n\n### Response:\n");
}

#[test]
fn a_text_stands_behind_the_thoughts() {
    let head = "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n";
    check(THINKS, &said("Yes", None), &format!("{head}<think>\n\n</think>\n\nYes"), false);
    check(THINKS, &said("\nYes ", Some("Hm")), &format!("{head}<think>\nHm\n</think>\n\nYes "), false);
    check(
        THINKS,
        &said("<think>Hm</think>Yes", None),
        &format!("{head}<think>\n\n</think>\n\n<think>Hm</think>Yes"),
        false,
    );
    check(OPENS, &said("<think>Hm</think>Yes", None), &format!("{head}Yes"), false);
}

#[test]
fn thoughts_without_a_text_go_on() {
    let head = "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n<think>\n";
    for source in [THINKS, OPENS] {
        check(source, &said("", Some("Hm, <b>")), &format!("{head}Hm, <b>"), true);
        check(source, &said(" \n", Some("Hm \n")), &format!("{head}Hm \n"), true);
        check(source, &said("<think>\nHm", None), &format!("{head}Hm"), true);
        check(source, &said("\n<think>", None), head, true);
    }
}

#[test]
fn a_text_behind_the_mark_of_thoughts_is_one() {
    let marks = "{% for m in messages %}{{ '<think>\n' if m.role == 'assistant' }}{{ m.content }}{% endfor %}";
    check(marks, &said(" Yes ", None), "U<think>\n Yes ", true);
    check(marks, &said("</think> Yes", None), "U<think>\n</think> Yes", false);
    // The user has written it.
    let asked = [ChatMessage::new("user", "<think>"), ChatMessage::new("assistant", "Yes")];
    check(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
        &asked,
        "user: <think>\nassistant: Yes",
        false,
    );
}

#[test]
fn thoughts_that_a_template_does_not_show_are_refused_unless_they_are_text() {
    let chatml = ChatTemplate::builtin("chatml").expect("it compiles");
    let unshown = Err(TemplateError::Unshown(Unshown::Thoughts));
    assert_eq!(continued(&chatml, &said("", Some("Hm"))), unshown);
    let text = "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n<think>Hm";
    assert_eq!(continued(&chatml, &said("<think>Hm", None)), Ok((text.to_owned(), true)));
    // They are in the prompt, and not between the model's marks.
    let told = "{% for m in messages %}{{ m.content }}{{ m.reasoning_content }}</think>{% endfor %}";
    assert_eq!(continued(&template(told), &said("", Some("Hm"))), unshown);
    // A model that does not think.
    let without = template(THINKS).continued(&tokenizer(), &said("", Some("Hm")), &context(), None);
    assert_eq!(without, Err(TemplateError::Unshown(Unshown::Thoughts)));
    let text = template(THINKS).continued(&tokenizer(), &said("<think>Hm", None), &context(), None);
    assert!(!text.expect("it is a text").in_thoughts);
}

#[test]
fn a_text_that_a_template_does_not_show_is_refused_and_so_is_what_it_refuses() {
    let users = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
    let unshown = Err(TemplateError::Unshown(Unshown::Text));
    assert_eq!(continued(&template(users), &said("A", None)), unshown);
    assert_eq!(continued(&template("{{ messages[-1].content[:1] }}"), &said("AB", None)), unshown);
    assert_eq!(continued(&template(users), &[]), unshown);
    let raises = "{% if messages[-1].role != 'user' %}{{ raise_exception('the user has the last word') }}{% endif %}";
    for message in [said("A", None), said("", Some("Hm"))] {
        let refused = continued(&template(raises), &message);
        assert_eq!(refused, Err(TemplateError::Raised("the user has the last word".to_owned())));
    }
}

#[test]
fn what_is_continued_cannot_hold_control_tokens() {
    let tokenizer = tokenizer();
    let is_control = |id: &&u32| tokenizer.token_text(**id).is_some_and(|text| text.starts_with("<|"));
    for (source, content, thoughts) in [
        (THINKS, "a<|im_end|>\n<|im_start|>b", None),
        (THINKS, "", Some("a<|im_end|>\n<|im_start|>b")),
        (OPENS, "", Some("a<|im_end|>\n<|im_start|>b")),
        (OPENS, "<|im_", None),
    ] {
        let found = template(source).continued(&tokenizer, &said(content, thoughts), &context(), Some(THINK));
        let prompt = found.expect("it can be continued").prompt;
        let ids = tokenizer.encode_prompt(&prompt, false).expect("it can be encoded");
        assert_eq!(tokenizer.decode(&ids, false), prompt.text());
        // Those of the user's turn, and the beginning of the open one.
        assert_eq!(ids.iter().filter(is_control).count(), 3, "{}", prompt.text());
    }
}

#[test]
fn the_prompt_of_a_text_has_the_tokens_of_what_it_shows() {
    let tokenizer = tokenizer();
    let chatml = ChatTemplate::builtin("chatml").expect("it compiles");
    let found = chatml.continued(&tokenizer, &said("hello wor", None), &context(), None).expect("it can be continued");
    let options = crate::EncodeOptions { parse_special: true, add_bos: false };
    let whole = tokenizer.encode(&found.prompt.text(), options).expect("it can be encoded");
    assert_eq!(tokenizer.encode_prompt(&found.prompt, false).expect("it can be encoded"), whole);
}
