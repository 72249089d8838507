//! Damaged and hostile model files, by seed: what a cut download, a flipped bit or an attacker makes of a small model.
//!
//! Three kinds in equal parts. *Blind* damage hits any byte. *Structural* damage hits a count, length, type, dimension
//! or offset, with the values that break readers. *Semantic* damage leaves a file that is well-formed and lies: sizes
//! that do not fit together, tokens out of range, keys of another type.
//!
//! A program given such a file must answer with an error or run; it must not crash, hang, or take memory that the file
//! does not justify.

use crate::gguf::{Field, FieldKind};
use crate::lies::lie;
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
