//! Names of full blocks.
use sha2::{Digest, Sha256};

/// Names a full block by everything that its contents depend on: the model and all tokens up to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub [u8; 32]);

impl BlockHash {
    /// What the names of a model's blocks begin with.
    pub fn root(identity: &str, salt: Option<&str>) -> Self {
        let mut hasher = Sha256::new();
        for part in [Some(identity), salt].into_iter().flatten() {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        BlockHash(hasher.finalize().into())
    }

    /// The name of the block of `tokens` that follows.
    #[must_use]
    pub fn child(&self, tokens: &[u32]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        for token in tokens {
            hasher.update(token.to_le_bytes());
        }
        BlockHash(hasher.finalize().into())
    }
}

impl std::fmt::Display for BlockHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
