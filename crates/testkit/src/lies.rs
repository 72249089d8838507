//! The semantic kind of hostile files: well-formed ones that lie.

use crate::gguf::{GgufBuilder, Value};
use crate::rng::SplitMix;
use crate::tiny::TinyModel;

/// One lie in a file that is otherwise sound.
pub(crate) fn lie(builder: GgufBuilder, model: &TinyModel, rng: &mut SplitMix) -> (GgufBuilder, String) {
    let keys: Vec<(String, Value)> = builder.keys().map(|(key, value)| (key.to_owned(), value.clone())).collect();
    let tensors: Vec<(String, Vec<u64>)> =
        builder.tensors().map(|(name, dims)| (name.to_owned(), dims.to_vec())).collect();
    match rng.below(10) {
        0 => {
            let (key, _) = rng.pick(&keys);
            (builder.without(key), format!("{key} left out"))
        }
        1 => {
            let (key, _) = rng.pick(&keys);
            let value = other_kind(rng);
            let done = format!("{key} set to {}", short(&value));
            (builder.set(key, value), done)
        }
        2..=4 => {
            let numbers: Vec<_> =
                keys.iter().filter(|(_, value)| odd_number(value, &mut SplitMix::new(0)).is_some()).collect();
            let (key, old) = *rng.pick(&numbers);
            let value = odd_number(old, rng).unwrap_or(Value::U32(0));
            let done = format!("{key} set to {value:?}");
            (builder.set(key, value), done)
        }
        5 => {
            let (name, _) = rng.pick(&tensors);
            (builder.without_tensor(name), format!("{name} left out"))
        }
        6 => {
            let (name, dims) = rng.pick(&tensors);
            let mut dims = dims.clone();
            match rng.below(4) {
                0 => dims.reverse(),
                1 => dims.push(1),
                2 => dims = vec![dims.iter().product()],
                _ => *dims.last_mut().expect("tensors have dimensions") -= 1,
            }
            let done = format!("{name} with dimensions {dims:?}");
            (builder.claim_dims(name, &dims), done)
        }
        7 => bad_vocabulary(builder, model, rng),
        8 => bad_template(builder, rng),
        _ => bad_shape_of_file(builder, rng),
    }
}

fn short(value: &Value) -> String {
    format!("{value:?}").chars().take(80).collect()
}

fn other_kind(rng: &mut SplitMix) -> Value {
    match rng.below(8) {
        0 => Value::String(b"not a number".to_vec()),
        1 => Value::Bool(1),
        2 => Value::F32(f32::NAN),
        3 => Value::Array(4, Vec::new()),
        4 => Value::Array(4, vec![Value::U32(1); 5]),
        5 => Value::I64(i64::MIN),
        6 => Value::String(rng.bytes(40)),
        _ => Value::Array(8, vec![Value::String(Vec::new()); 3]),
    }
}

/// Another value of the same kind; `None` for what is no number.
fn odd_number(value: &Value, rng: &mut SplitMix) -> Option<Value> {
    match value {
        Value::U32(old) => Some(Value::U32(match rng.below(9) {
            0 => 0,
            1 => u32::MAX,
            2 => 1 << 31,
            3 => 1 << 24,
            4 => old.wrapping_add(1),
            5 => old.wrapping_sub(1),
            6 => old.wrapping_mul(2),
            7 => 100_000,
            _ => 1,
        })),
        Value::F32(_) => {
            Some(Value::F32(*rng.pick(&[0.0, -1.0, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE, f32::MAX, -0.0, 1e30])))
        }
        _ => None,
    }
}

fn bad_vocabulary(builder: GgufBuilder, model: &TinyModel, rng: &mut SplitMix) -> (GgufBuilder, String) {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    const TYPES: &str = "tokenizer.ggml.token_type";
    const MERGES: &str = "tokenizer.ggml.merges";
    let strings = |texts: Vec<Vec<u8>>| Value::Array(8, texts.into_iter().map(Value::String).collect());
    let (key, value, done) = match rng.below(9) {
        0 => (TOKENS, strings(vec![b"a".to_vec(); model.vocab]), "all tokens the same"),
        1 => (TOKENS, strings((0..model.vocab).map(|_| rng.bytes(5)).collect()), "tokens of random bytes"),
        2 => (TOKENS, strings(vec![Vec::new(); model.vocab]), "empty tokens"),
        3 => (TOKENS, strings((0..9).map(|i| vec![b'a' + i]).collect()), "fewer tokens than embeddings"),
        4 => (TYPES, Value::Array(5, vec![Value::I32(-7); 3]), "three token types"),
        5 => (MERGES, Value::strings(&["nospace", "", " ", "a  b", "zz yy"]), "merges that are no pairs"),
        6 => (TYPES, Value::Array(5, vec![Value::I32(3); model.vocab]), "all tokens control tokens"),
        7 => {
            let merges = (0..20_000).map(|i| format!("{i} {}", i + 1).into_bytes()).collect();
            (MERGES, strings(merges), "many merges of unknown tokens")
        }
        _ => {
            let long = vec![b'x'; 1 << 12];
            (TOKENS, strings((0..model.vocab).map(|i| [&long[..i * 7], b"y"].concat()).collect()), "long tokens")
        }
    };
    (builder.set(key, value), done.to_owned())
}

fn bad_template(builder: GgufBuilder, rng: &mut SplitMix) -> (GgufBuilder, String) {
    let template = *rng.pick(&[
        "{% for i in range(1000000000) %}{{ i }}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'x' * 1000000000 }}",
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{% if %}",
        "{{ raise_exception('no') }}",
        "{{ messages[99].content.upper() }}",
        "{% include '/etc/passwd' %}",
        "",
    ]);
    let (template, done) = match rng.below(4) {
        0 => ("(".repeat(1 << 16), "a template of 65536 parentheses".to_owned()),
        1 => (
            format!("{{{{ {}1{} }}}}", "[".repeat(20_000), "]".repeat(20_000)),
            "a template of nested lists".to_owned(),
        ),
        _ => (template.to_owned(), format!("the template {template}")),
    };
    (builder.set("tokenizer.chat_template", Value::String(template.into())), done)
}

fn bad_shape_of_file(builder: GgufBuilder, rng: &mut SplitMix) -> (GgufBuilder, String) {
    match rng.below(9) {
        0 => (builder.string("general.architecture", "llama"), "a key twice".to_owned()),
        1 => {
            let twice = builder.tensor("output_norm.weight", &[1], 0, vec![0; 4]);
            (twice, "a tensor twice".to_owned())
        }
        2 => {
            let builder = builder.tensor("a", &[8], 0, vec![0; 32]).at_offset(0);
            (builder, "a tensor over another".to_owned())
        }
        3 => {
            let depth = 100_000;
            let nested: Vec<u8> = std::iter::repeat_n([9u32.to_le_bytes(), 1u32.to_le_bytes(), [0; 4]].concat(), depth)
                .flatten()
                .collect();
            (builder.value("deep", Value::Raw(9, nested)), format!("arrays {depth} deep"))
        }
        4 => {
            let num = 1 << 20;
            let header = [0u32.to_le_bytes().to_vec(), u64::to_le_bytes(num).to_vec(), vec![1; num as usize]].concat();
            (builder.value("wide", Value::Raw(9, header)), format!("an array of {num} bytes"))
        }
        5 => {
            let alignment = *rng.pick(&[0, 1, 3, 4, 33, 1 << 16, 1 << 31, u32::MAX]);
            (builder.set("general.alignment", Value::U32(alignment)), format!("alignment {alignment}"))
        }
        6 => {
            let id = *rng.pick(&[4, 9, 15, 16, 24, 28, 39, 99, u32::MAX]);
            (builder.tensor("odd.weight", &[256], id, vec![0; 1024]), format!("a tensor of type {id}"))
        }
        7 => (builder.value("split.count", Value::U16(3)), "one of three parts".to_owned()),
        _ => {
            let key = rng.bytes(20);
            (builder.raw_key(&key, Value::U32(1)), "a key of random bytes".to_owned())
        }
    }
}
