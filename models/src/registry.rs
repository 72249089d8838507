//! Which architectures run, and in what they differ: one row each. A new Llama-like family is a row here and a tiny golden
//! file in `tests/golden`; everything not listed is refused by name.

use crate::Error;
use taper_kernels::RopeKind;

/// Whether a kind of tensor belongs to an architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Every model of the family has it.
    Required,
    /// Some models have it, in all layers or in none.
    Optional,
    /// No model of the family has it; finding it is an error.
    Absent,
}

/// One row of the registry.
#[derive(Debug, PartialEq, Eq)]
pub struct Architecture {
    /// `general.architecture`, also the prefix of the file's keys.
    pub name: &'static str,
    /// What a user knows it as.
    pub families: &'static str,
    /// Which pairs RoPE turns. GGUF permutes the q and k rows of llama files for adjacent pairs.
    pub rope: RopeKind,
    /// `attn_{q,k,v}.bias`.
    pub qkv_bias: Presence,
    /// `attn_{q,k}_norm.weight`: RMS norm of every query and key head before RoPE.
    pub qk_norm: bool,
    /// Whether `rope_freqs.weight` may divide the RoPE frequencies (Llama 3.1 and later).
    pub rope_factors: bool,
}

/// The rows.
pub const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        name: "llama",
        families: "Llama 2 and 3, SmolLM, and Mistral as it is usually converted",
        rope: RopeKind::AdjacentPairs,
        qkv_bias: Presence::Optional,
        qk_norm: false,
        rope_factors: true,
    },
    Architecture {
        name: "mistral",
        families: "Mistral",
        rope: RopeKind::AdjacentPairs,
        qkv_bias: Presence::Absent,
        qk_norm: false,
        rope_factors: true,
    },
    Architecture {
        name: "qwen2",
        families: "Qwen 2 and 2.5",
        rope: RopeKind::HalfSplit,
        qkv_bias: Presence::Required,
        qk_norm: false,
        rope_factors: false,
    },
    Architecture {
        name: "qwen3",
        families: "Qwen 3",
        rope: RopeKind::HalfSplit,
        qkv_bias: Presence::Absent,
        qk_norm: true,
        rope_factors: false,
    },
];

/// The row of an architecture, or an error that lists what runs.
pub fn find(name: &str) -> Result<&'static Architecture, Error> {
    ARCHITECTURES.iter().find(|row| row.name == name).ok_or_else(|| {
        let rows: Vec<String> = ARCHITECTURES.iter().map(|row| format!("{} ({})", row.name, row.families)).collect();
        Error::UnknownArchitecture { found: name.chars().take(64).collect(), runs: rows.join(", ") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_by_its_name() {
        for row in ARCHITECTURES {
            assert_eq!(find(row.name).unwrap(), row);
        }
    }

    #[test]
    fn another_architecture_is_refused_with_the_list_of_what_runs() {
        let message = find("gemma3").unwrap_err().to_string();
        for expected in ["`gemma3`", "llama", "mistral", "qwen2", "qwen3", "convert_hf_to_gguf.py"] {
            assert!(message.contains(expected), "{expected} is not in: {message}");
        }
    }

    #[test]
    fn an_endless_name_is_cut_in_the_message() {
        assert!(find(&"x".repeat(1 << 20)).unwrap_err().to_string().len() < 1000);
    }
}
