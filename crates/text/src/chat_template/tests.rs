use serde_json::json;

use super::*;

/// Renders a source with a fixed clock, 29 July 2024.
fn render(source: &str, messages: &[ChatMessage], context: &RenderContext) -> Result<String, TemplateError> {
    ChatTemplate::with_clock(source, || 1_722_211_200).expect("the template compiles").render(messages, context)
}

fn check(source: &str, expected: &str) {
    assert_eq!(render(source, &conversation(), &context()).as_deref(), Ok(expected), "{source}");
}

fn conversation() -> Vec<ChatMessage> {
    vec![
        ChatMessage::new("system", "Be brief."),
        ChatMessage::new("user", "Hi"),
        ChatMessage::new("assistant", "Yo"),
        ChatMessage::new("user", "Bye"),
    ]
}

fn context() -> RenderContext {
    RenderContext {
        bos_text: "<s>".to_owned(),
        eos_text: "</s>".to_owned(),
        add_generation_prompt: true,
        ..RenderContext::default()
    }
}

fn check_builtin(name: &str, expected: &str) {
    let template = ChatTemplate::builtin(name).expect("a builtin template compiles");
    assert_eq!(template.render(&conversation(), &context()).as_deref(), Ok(expected), "{name}");
}

#[test]
fn builtin_templates_write_what_their_models_were_trained_on() {
    check_builtin(
        "chatml",
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n\
         <|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
    );
    check_builtin(
        "llama3",
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n\
         Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nYo<|eot_id|><|start_header_id|>user<|end_header_id|>\
         \n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    );
    check_builtin("llama2", "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Yo </s><s>[INST] Bye [/INST]");
    check_builtin("mistral", "<s>[INST] Be brief.\n\nHi [/INST] Yo</s>[INST] Bye [/INST]");
    check_builtin(
        "zephyr",
        "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nYo</s>\n<|user|>\nBye</s>\n<|assistant|>\n",
    );
    check_builtin("vicuna", "<s>Be brief.\n\nUSER: Hi\nASSISTANT: Yo</s>\nUSER: Bye\nASSISTANT:");
    check_builtin(
        "alpaca",
        "Be brief.\n\n### Instruction:\nHi\n\n### Response:\nYo</s>\n\n### Instruction:\nBye\n\n### Response:\n",
    );
}

#[test]
fn every_builtin_name_gives_a_template_and_no_other_does() {
    assert!(ChatTemplate::builtin_names().contains(&"chatml"));
    for name in ChatTemplate::builtin_names() {
        assert!(ChatTemplate::builtin(name).is_some(), "{name}");
    }
    assert!(ChatTemplate::builtin("nonesuch").is_none());
}

#[test]
fn the_generation_prompt_is_optional() {
    let context = RenderContext { add_generation_prompt: false, ..context() };
    let template = ChatTemplate::builtin("chatml").expect("it compiles");
    let text = template.render(&[ChatMessage::new("user", "Hi")], &context);
    assert_eq!(text.as_deref(), Ok("<|im_start|>user\nHi<|im_end|>\n"));
}

#[test]
fn a_raised_exception_keeps_its_words_and_a_failure_names_its_line() {
    let raised = render("{{ raise_exception('no system role') }}", &[], &context());
    assert_eq!(raised, Err(TemplateError::Raised("no system role".to_owned())));
    let nested = "{% macro refuse() %}{{ raise_exception('inner') }}{% endmacro %}{{ refuse() }}";
    assert_eq!(render(nested, &[], &context()), Err(TemplateError::Raised("inner".to_owned())));
    let Err(TemplateError::Failed(message)) = render("a\n{{ nonesuch() }}", &[], &context()) else { panic!() };
    assert!(message.contains("nonesuch") && message.contains(":2"), "{message}");
}

#[test]
fn an_endless_template_is_stopped() {
    let source = "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}";
    assert!(matches!(render(source, &[], &context()), Err(TemplateError::Failed(_))));
    let recursion = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
    assert!(matches!(render(recursion, &[], &context()), Err(TemplateError::Failed(_))));
}

#[test]
fn a_template_that_is_not_jinja_is_refused_with_its_name() {
    let error = ChatTemplate::from_source("my.jinja", "{% for %}").expect_err("it is not Jinja").to_string();
    assert!(error.contains("my.jinja") && error.contains("syntax error"), "{error}");
}

#[test]
fn a_template_that_nests_without_end_is_compiled_or_refused_but_ends_nothing_else() {
    for (unit, rest) in [("-", "1"), ("not ", "1"), ("1+", "1"), ("(", "1"), ("1 or ", "1"), ("x if x else ", "1")] {
        let source = format!("{{{{ {}{rest} }}}}", unit.repeat((MAX_SOURCE_LEN - 7) / unit.len()));
        if let Ok(template) = ChatTemplate::from_source("test", &source) {
            let _ = template.render(&[], &context());
        }
    }
    let source = format!("{{% if x %}}{}{{% endif %}}", "{%elif 1%}".repeat(12_000));
    assert!(ChatTemplate::from_source("test", &source).is_ok());
    let error = ChatTemplate::from_source("test", &"x".repeat(MAX_SOURCE_LEN + 1)).expect_err("it is too long");
    assert!(error.to_string().contains("131073 bytes"), "{error}");
}

#[test]
fn pythons_methods_and_slices_work() {
    check("{{ ' a '.strip() }}|{{ 'a,b'.split(',')[-1] }}|{{ 'abc'.startswith('ab') }}", "a|b|True");
    check(
        "{{ messages[1:] | length }}|{{ messages[-1]['content'] }}|{{ {'a': 1}.items() | list | length }}",
        "3|Bye|1",
    );
    check("{{ missing.foo is defined }}|{{ tools is defined }}|{{ messages[0].name is defined }}", "False|False|False");
}

#[test]
fn tojson_writes_what_python_writes() {
    let tools = json!([{"type": "function", "n": 1.0, "text": "<é'&>"}]);
    let context = RenderContext { tools: Some(tools), ..context() };
    let text = render("{{ tools | tojson }}|{{ tools[0] | tojson(indent=1) }}", &[], &context);
    let expected = "[{\"type\": \"function\", \"n\": 1.0, \"text\": \"<é'&>\"}]|\
                    {\n \"type\": \"function\",\n \"n\": 1.0,\n \"text\": \"<é'&>\"\n}";
    assert_eq!(text.as_deref(), Ok(expected));
}

#[test]
fn the_date_can_be_asked_for() {
    check("{{ strftime_now('%d %b %Y') }}", "29 Jul 2024");
}

#[test]
fn extra_variables_are_seen_but_replace_nothing() {
    let extra = json!({"enable_thinking": false, "messages": [], "tools": [1]});
    let serde_json::Value::Object(extra) = extra else { unreachable!() };
    let context = RenderContext { extra, ..context() };
    let text =
        render("{{ enable_thinking }} {{ messages | length }} {{ tools is defined }}", &conversation(), &context);
    assert_eq!(text.as_deref(), Ok("False 4 False"));
}

#[test]
fn generation_tags_leave_the_text_and_its_white_space_alone() {
    let marked = "a\n{% generation %}\nb\n{%- endgeneration -%}\n c{% set x = 'y' %}{{ x }}";
    check(marked, "a\nbcy");
}

#[test]
fn control_tokens_in_messages_are_left_to_the_encoder() {
    // The text cannot tell a typed `<|im_end|>` from the template's; see `ChatTemplate::prompt`.
    let template = ChatTemplate::builtin("chatml").expect("it compiles");
    let text = template.render(&[ChatMessage::new("user", "<|im_end|>{{ bos_token }}")], &context());
    assert!(
        text.is_ok_and(|text| text.contains("\n<|im_end|>{{ bos_token }}<|im_end|>\n")),
        "content is not a template"
    );
}
