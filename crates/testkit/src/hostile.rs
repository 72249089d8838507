//! Damaged and hostile model files, by seed: what a cut download, a flipped bit or an attacker makes of a small model.
//!
//! Three kinds in equal parts. *Blind* damage hits any byte. *Structural* damage hits a count, length, type, dimension
//! or offset, with the values that break readers. *Semantic* damage leaves a file that is well-formed and lies: sizes
//! that do not fit together, tokens out of range, keys of another type.
//!
//! A program given such a file must answer with an error or run; it must not crash, hang, or take memory that the file
//! does not justify.

use crate::gguf::{Field, FieldKind, GgufBuilder, Value};
use crate::rng::SplitMix;
use crate::tiny::{TinyModel, TinyType};

/// A file and what was done to it.
#[derive(Debug, Clone)]
pub struct HostileFile {
    /// The file.
    pub bytes: Vec<u8>,
    /// What was done, for the message of a failing test.
    pub story: String,
}

/// The file for this seed. Neighbouring seeds differ in kind and model.
pub fn hostile_file(seed: u64) -> HostileFile {
    let mut rng = SplitMix::new(seed);
    let model = base_model(seed / 3);
    let mut story = format!("seed {seed}, {} {:?}", model.architecture, model.weight_type);
    let builder = model.builder();
    if seed % 3 == 2 {
        let (builder, done) = lie(builder, &model, &mut rng);
        return HostileFile { bytes: builder.build(), story: format!("{story}: {done}") };
    }
    let (mut bytes, fields) = builder.build_with_fields();
    for _ in 0..1 + rng.below(3) {
        let done = match seed % 3 {
            0 => blind(&mut bytes, &fields, &mut rng),
            _ => structural(&mut bytes, &fields, &mut rng),
        };
        story.push_str(&format!("; {done}"));
    }
    HostileFile { bytes, story }
}

/// Small models of every architecture and of block lengths 1, 32 and 256.
fn base_model(seed: u64) -> TinyModel {
    let model = TinyModel {
        hidden: 32,
        heads: 2,
        kv_heads: 1,
        ffn: 32,
        layers: 1,
        context: 64,
        version: 2 + (seed % 2) as u32,
        ..TinyModel::default()
    };
    match seed % 5 {
        0 => model,
        1 => TinyModel { architecture: "qwen2", weight_type: TinyType::Q8_0, tied: false, ..model },
        2 => TinyModel { architecture: "qwen3", weight_type: TinyType::Q4_1, ..model },
        3 => TinyModel { weight_type: TinyType::Q5_0, rope_freqs: Some(vec![1.0; 8]), ..model },
        _ => TinyModel { weight_type: TinyType::Q4_K, hidden: 256, head_dim: 128, ffn: 256, ..model },
    }
}

/// Where the last field ends: the header's length, but for the last string's text.
fn header_len(fields: &[Field]) -> usize {
    fields.last().map_or(0, |field| field.bytes.end)
}

fn blind(bytes: &mut Vec<u8>, fields: &[Field], rng: &mut SplitMix) -> String {
    if bytes.is_empty() {
        return "nothing left to damage".to_owned();
    }
    let header = header_len(fields).clamp(1, bytes.len());
    match rng.below(6) {
        0 | 1 => {
            let (end, part) = if rng.chance(0.7) { (header, "header") } else { (bytes.len(), "file") };
            let num = 1 + rng.below(16);
            for _ in 0..num {
                bytes[rng.below(end)] ^= 1 << rng.below(8);
            }
            format!("{num} bits flipped in the {part}")
        }
        2 => {
            let len = truncation(bytes.len(), header, fields, rng);
            bytes.truncate(len);
            format!("cut to {len} bytes")
        }
        3 => {
            let start = rng.below(header);
            let len = (1 + rng.below(64)).min(bytes.len() - start);
            let fill = *rng.pick(&[0x00, 0xff, 0x80, 0x7f]);
            bytes[start..start + len].fill(fill);
            format!("{len} bytes at {start} set to {fill:#04x}")
        }
        4 => {
            let at = rng.below(header);
            let num = 1 + rng.below(40);
            let inserted = rng.bytes(num);
            bytes.splice(at..at, inserted);
            format!("{num} random bytes inserted at {at}")
        }
        _ => {
            let start = rng.below(header);
            let end = (start + 1 + rng.below(40)).min(bytes.len());
            bytes.drain(start..end);
            format!("bytes {start}..{end} removed")
        }
    }
}

/// A length to cut to: within the first words, at or inside a field, in the header, in the data, or just before the end.
fn truncation(len: usize, header: usize, fields: &[Field], rng: &mut SplitMix) -> usize {
    let field = &rng.pick(fields).bytes;
    let cut = match rng.below(6) {
        0 => rng.below(32),
        1 => field.start,
        2 => field.start + rng.below(field.len()),
        3 => rng.below(header),
        4 => header + rng.below(len.saturating_sub(header).max(1)),
        _ => len - (1 + rng.below(40)).min(len),
    };
    cut.min(len)
}

fn structural(bytes: &mut [u8], fields: &[Field], rng: &mut SplitMix) -> String {
    // The kind first, or the lengths of the vocabulary's strings would be nearly all.
    let mut kinds: Vec<FieldKind> = Vec::new();
    for field in fields {
        if !kinds.contains(&field.kind) {
            kinds.push(field.kind);
        }
    }
    let kind = *rng.pick(&kinds);
    if kind == FieldKind::Dim && rng.chance(0.5) {
        return overflow_dims(bytes, fields, rng);
    }
    let candidates: Vec<&Field> = fields.iter().filter(|field| field.kind == kind).collect();
    let field = rng.pick(&candidates);
    let mut word = [0; 8];
    word[..field.bytes.len()].copy_from_slice(&bytes[field.bytes.clone()]);
    let old = u64::from_le_bytes(word);
    let len = bytes.len() as u64;
    let new = match rng.below(14) {
        0 => u64::MAX,
        1 => 1 << 63,
        2 => i64::MAX as u64,
        3 => 1 << 32,
        4 => u64::from(u32::MAX),
        5 => 1 << 31,
        6 => 1 << rng.below(64),
        7 => old.wrapping_add(1),
        8 => old.wrapping_sub(1),
        9 => 0,
        10 => len,
        11 => u64::MAX / 24 + rng.below(64) as u64,
        12 => rng.below(48) as u64,
        _ => old.wrapping_mul(2 + rng.below(1000) as u64),
    };
    bytes[field.bytes.clone()].copy_from_slice(&new.to_le_bytes()[..field.bytes.len()]);
    format!("{kind:?} at {} from {old} to {new}", field.bytes.start)
}

/// Dimensions of one tensor whose product is zero, one or the old one when it wraps at 64 bits.
fn overflow_dims(bytes: &mut [u8], fields: &[Field], rng: &mut SplitMix) -> String {
    let pairs: Vec<&[Field]> =
        fields.windows(2).filter(|pair| pair.iter().all(|field| field.kind == FieldKind::Dim)).collect();
    let pair = rng.pick(&pairs);
    let dims = *rng.pick(&[
        [1 << 32, 1 << 32],
        [1 << 33, (1 << 31) + 1],
        [1 << 62, 4],
        [(1 << 63) + 256, 2],
        [0x5555_5555_5555_5555, 3],
        [1 << 61, 1],
        [256, u64::MAX],
        [u64::MAX, u64::MAX],
        [256, 1 << 56],
    ]);
    for (field, dim) in pair.iter().zip(dims) {
        bytes[field.bytes.clone()].copy_from_slice(&u64::to_le_bytes(dim));
    }
    format!("dimensions at {} set to {dims:?}", pair[0].bytes.start)
}

/// One lie in a file that is otherwise sound.
fn lie(builder: GgufBuilder, model: &TinyModel, rng: &mut SplitMix) -> (GgufBuilder, String) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_file() {
        for seed in 0..30 {
            let (a, b) = (hostile_file(seed), hostile_file(seed));
            assert_eq!((a.bytes, a.story), (b.bytes, b.story));
        }
    }

    #[test]
    fn files_stay_small_and_differ_from_the_model() {
        let mut num_unchanged = 0;
        for seed in 0..300 {
            let file = hostile_file(seed);
            assert!(file.bytes.len() < 16 << 20, "{}: {} bytes", file.story, file.bytes.len());
            num_unchanged += u32::from(file.bytes == base_model(seed / 3).to_gguf());
        }
        // A number may be set to what it was.
        assert!(num_unchanged < 12, "{num_unchanged} files are as they were");
    }
}
