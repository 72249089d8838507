//! Heads and shapes of attention, and how they are written.

use std::fmt;
use std::str::FromStr;
use taper_kernels::HeadLayout;

/// Heads as rows name them: `32/8x64` is 32 query heads that share 8 KV heads, of 64 elements each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads(pub HeadLayout);

impl Heads {
    /// So many query heads, KV heads and elements.
    pub const fn new(num_heads: usize, num_kv_heads: usize, head_dim: usize) -> Heads {
        Heads(HeadLayout { num_heads, num_kv_heads, head_dim })
    }
}

impl FromStr for Heads {
    type Err = String;

    fn from_str(text: &str) -> Result<Heads, String> {
        let positive = |digits: &str| digits.parse().ok().filter(|n| (1..=1 << 12).contains(n));
        let heads = text.split_once('/').and_then(|(num_heads, rest)| {
            let (num_kv_heads, head_dim) = rest.split_once('x')?;
            Some(Heads::new(positive(num_heads)?, positive(num_kv_heads)?, positive(head_dim)?))
        });
        heads.filter(|Heads(layout)| layout.num_heads.is_multiple_of(layout.num_kv_heads)).ok_or_else(|| {
            format!(
                "`{text}` are no heads: expected HEADS/KV_HEADSxELEMENTS, such as 32/8x64; the first is a multiple of the second"
            )
        })
    }
}

impl fmt::Display for Heads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HeadLayout { num_heads, num_kv_heads, head_dim } = self.0;
        write!(f, "{num_heads}/{num_kv_heads}x{head_dim}")
    }
}

/// Heads, sequences and the keys of each: `32/8x64 b1@4096`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Heads.
    pub heads: Heads,
    /// Sequences.
    pub batch: usize,
    /// Keys of each.
    pub len: usize,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} b{}@{}", self.heads, self.batch, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_are_written() {
        assert_eq!("32/8x64".parse(), Ok(Heads::new(32, 8, 64)));
        assert_eq!(Heads::new(9, 3, 64).to_string(), "9/3x64");
        for text in ["", "32", "32/8", "32/0x64", "8/3x64", "32x8/64", "32/8x64x1"] {
            assert!(text.parse::<Heads>().unwrap_err().contains(&format!("`{text}`")), "{text}");
        }
    }
}
