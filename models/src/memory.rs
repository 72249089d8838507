//! How long a context and how many cache blocks a model gets when the user does not say.

use crate::{Error, LoadOptions, ModelConfig};
use taper_kernels::BLOCK_SIZE;

/// Positions that a model gets whatever the memory, unless it was made for fewer.
const LEAST_CONTEXT: usize = 2048;
/// Positions beyond which a context has to be asked for, so that a file's claim alone does not take gigabytes.
const MOST_DEFAULT_CONTEXT: usize = 131_072;
/// Sequences of full length that the cache holds by default, memory permitting.
const SEQUENCES: usize = 4;

/// The decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Positions of one sequence.
    pub(crate) context_len: usize,
    /// Cache blocks shared by all sequences.
    pub(crate) num_blocks: usize,
    /// What the user should know, because it is not what was asked for or what the file offers.
    pub(crate) notes: Vec<String>,
}

/// Decides from the options, the model and a quarter of the memory that is free now; `block_bytes` is the size of one block
/// over all layers.
pub(crate) fn plan(
    config: &ModelConfig,
    options: &LoadOptions,
    block_bytes: usize,
    available_bytes: usize,
) -> Result<Plan, Error> {
    let blocks_in = |bytes: usize| (bytes / block_bytes.max(1)).min(MOST_BLOCKS);
    let limit = options.kv_cache_limit.unwrap_or(available_bytes / 4);
    let affordable = blocks_in(options.kv_cache_bytes.unwrap_or(limit));
    if options.kv_cache_bytes.is_some() && affordable == 0 {
        return Err(Error::BadOption(format!(
            "a KV cache of {} bytes holds nothing: one block of {BLOCK_SIZE} positions takes {block_bytes}",
            options.kv_cache_bytes.unwrap_or_default()
        )));
    }
    let mut notes = Vec::new();
    let usable = config.usable_context_len();
    if let Some(window) = config.sliding_window
        && options.context_len.is_none_or(|wanted| wanted > window)
    {
        notes.push(format!(
            "the context is limited to the model's sliding window of {window} positions (the file says {}), since \
             attention is computed in full",
            config.context_len
        ));
    }
    let mut context_len = match options.context_len {
        Some(0) => return Err(Error::BadOption("the context length is 0; it has to be at least 1".into())),
        Some(wanted) => {
            if wanted > config.context_len {
                notes.push(format!(
                    "the context is limited to the {} positions the model was made for",
                    config.context_len
                ));
            }
            wanted.min(usable)
        }
        None => {
            let fitting = usable.min(LEAST_CONTEXT.max(affordable * BLOCK_SIZE)).min(MOST_DEFAULT_CONTEXT);
            if fitting < usable {
                let share = match options.kv_cache_limit {
                    Some(_) => "its share of the memory",
                    None => "a quarter of the free memory",
                };
                notes.push(format!(
                    "the context is limited to {fitting} of {usable} positions, so that its cache takes at most {share} \
                     and {MOST_DEFAULT_CONTEXT} positions; a larger context can be asked for"
                ));
            }
            fitting
        }
    };
    let needed = context_len.div_ceil(BLOCK_SIZE);
    let num_blocks = match options.num_blocks {
        Some(0) => return Err(Error::BadOption("the number of cache blocks is 0; it has to be at least 1".into())),
        Some(wanted) => wanted,
        None if options.kv_cache_bytes.is_some() => affordable,
        None => needed.max(needed.saturating_mul(SEQUENCES).min(affordable)),
    };
    if num_blocks > MOST_BLOCKS {
        return Err(Error::BadOption(format!(
            "{num_blocks} cache blocks of {BLOCK_SIZE} positions are asked for; at most {MOST_BLOCKS} can be addressed"
        )));
    }
    if num_blocks < needed {
        context_len = num_blocks * BLOCK_SIZE;
        notes
            .push(format!("the context is limited to the {context_len} positions that {num_blocks} cache blocks hold"));
    }
    Ok(Plan { context_len, num_blocks, notes })
}

/// A slot, `block * BLOCK_SIZE + offset`, is a `u32`.
const MOST_BLOCKS: usize = (u32::MAX as usize + 1) / BLOCK_SIZE;

/// Bytes that can be allocated without swapping, as Linux estimates them; 4 GiB where nobody says.
pub fn available_bytes() -> usize {
    std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| parse_available(&text)).unwrap_or(4 << 30)
}

fn parse_available(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use taper_kernels::{HeadLayout, Rope, RopeKind};

    const BLOCK_BYTES: usize = 1 << 20;

    fn config(context_len: usize, sliding_window: Option<usize>) -> ModelConfig {
        ModelConfig {
            architecture: "llama",
            name: None,
            num_layers: 1,
            hidden_size: 8,
            heads: HeadLayout { num_heads: 1, num_kv_heads: 1, head_dim: 8 },
            ffn_size: 8,
            vocab_size: 8,
            context_len,
            sliding_window,
            norm_eps: 1e-5,
            rope: Rope { kind: RopeKind::HalfSplit, rotary_dim: 8, inv_freq: vec![1.0; 4], magnitude: 1.0 },
            tied: true,
            qkv_bias: false,
            qk_norm: false,
            pooling: None,
        }
    }

    fn planned(
        config: &ModelConfig,
        context_len: Option<usize>,
        num_blocks: Option<usize>,
        blocks_free: usize,
    ) -> Plan {
        let options = LoadOptions { context_len, num_blocks, ..LoadOptions::default() };
        plan(config, &options, BLOCK_BYTES, 4 * blocks_free * BLOCK_BYTES).unwrap()
    }

    #[test]
    fn with_plenty_of_memory_four_full_contexts_fit() {
        let plan = planned(&config(8192, None), None, None, 100_000);
        assert_eq!(plan, Plan { context_len: 8192, num_blocks: 4 * 128, notes: vec![] });
    }

    #[test]
    fn with_little_memory_the_default_context_shrinks_and_says_so() {
        let plan = planned(&config(131_072, None), None, None, 100);
        assert_eq!((plan.context_len, plan.num_blocks), (6400, 100));
        assert!(plan.notes[0].contains("6400 of 131072"), "{:?}", plan.notes);
        assert_eq!(planned(&config(131_072, None), None, None, 1).context_len, LEAST_CONTEXT);
    }

    #[test]
    fn a_share_of_the_memory_decides_instead_of_what_is_free() {
        let sized = |blocks| {
            let options = LoadOptions { kv_cache_limit: Some(blocks * BLOCK_BYTES), ..LoadOptions::default() };
            plan(&config(8192, None), &options, BLOCK_BYTES, 1).unwrap()
        };
        assert_eq!((sized(100_000).context_len, sized(100_000).num_blocks), (8192, 4 * 128));
        assert_eq!((sized(100).context_len, sized(100).num_blocks), (6400, 100));
        assert!(sized(100).notes[0].contains("its share"), "{:?}", sized(100).notes);
    }

    #[test]
    fn a_claim_of_endless_context_is_cut_unless_asked_for() {
        let endless = config(u32::MAX as usize, None);
        assert_eq!(planned(&endless, None, None, 1 << 30).context_len, MOST_DEFAULT_CONTEXT);
        assert_eq!(planned(&endless, Some(1 << 20), None, 1 << 30).context_len, 1 << 20);
    }

    #[test]
    fn a_context_that_is_asked_for_is_given_whatever_the_memory() {
        assert_eq!(planned(&config(8192, None), Some(8000), None, 1).num_blocks, 125);
    }

    #[test]
    fn a_context_beyond_the_model_is_limited_and_says_so() {
        let plan = planned(&config(4096, None), Some(9999), None, 1000);
        assert_eq!(plan.context_len, 4096);
        assert!(plan.notes[0].contains("4096"), "{:?}", plan.notes);
    }

    #[test]
    fn a_sliding_window_limits_the_context_and_says_so() {
        let plan = planned(&config(32_768, Some(4096)), None, None, 100_000);
        assert_eq!(plan.context_len, 4096);
        assert!(plan.notes[0].contains("sliding window of 4096"), "{:?}", plan.notes);
        assert!(planned(&config(32_768, Some(4096)), Some(1000), None, 1000).notes.is_empty());
    }

    #[test]
    fn few_blocks_limit_the_context_and_say_so() {
        let plan = planned(&config(8192, None), Some(8192), Some(3), 1000);
        assert_eq!((plan.context_len, plan.num_blocks, plan.notes.len()), (192, 3, 1));
    }

    #[test]
    fn a_cache_of_so_many_bytes_has_as_many_blocks_as_fit() {
        let sized = |bytes| {
            let options = LoadOptions { kv_cache_bytes: Some(bytes), ..LoadOptions::default() };
            plan(&config(8192, None), &options, BLOCK_BYTES, 1 << 40)
        };
        let large = sized(1000 * BLOCK_BYTES + 1).unwrap();
        assert_eq!((large.context_len, large.num_blocks), (8192, 1000));
        let small = sized(40 * BLOCK_BYTES).unwrap();
        assert_eq!((small.context_len, small.num_blocks), (2560, 40));
        assert!(!small.notes.is_empty());
        let tiny = sized(2 * BLOCK_BYTES).unwrap();
        assert_eq!((tiny.context_len, tiny.num_blocks), (128, 2), "less than every model gets by default");
        assert!(sized(BLOCK_BYTES - 1).is_err());
    }

    #[test]
    fn zero_and_unaddressable_sizes_are_refused() {
        for (context_len, num_blocks) in [(Some(0), None), (None, Some(0)), (None, Some(MOST_BLOCKS + 1))] {
            let options = LoadOptions { context_len, num_blocks, ..LoadOptions::default() };
            assert!(plan(&config(8192, None), &options, BLOCK_BYTES, 1 << 40).is_err());
        }
    }

    #[test]
    fn available_memory_is_read_in_bytes() {
        assert_eq!(parse_available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(parse_available("MemTotal: 9 kB\n"), None);
    }
}
