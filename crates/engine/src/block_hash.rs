//! Names of blocks of the KV cache, by what decides their bytes: a chain of SHA-256, one link per full block.
//!
//! ```text
//! root  = SHA-256("taper chain of blocks 1\n" | u64 len | identity | u8 is_salted | u64 len | salt)
//! child = SHA-256("taper block 1\n" | parent | u64 num_tokens | u32 tokens[])
//! ```
//!
//! Lengths come before what they count, so no two different inputs are the same bytes. Equal names mean the same tokens after
//! the same tokens, computed by runners of the same [`crate::Runner::identity`] for the same salt; whoever does not know a
//! salt can name none of its blocks. A client chooses tokens, so only a hash without known collisions keeps one client's
//! block from being served to another.

use sha2::{Digest, Sha256};
use std::fmt;

/// Name of a block, or of the root of a chain of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub [u8; 32]);

impl BlockHash {
    /// Where chains begin: one root per identity and salt.
    pub fn root(identity: &str, salt: Option<&str>) -> BlockHash {
        let mut hasher = Sha256::new_with_prefix("taper chain of blocks 1\n");
        hasher.update((identity.len() as u64).to_le_bytes());
        hasher.update(identity);
        hasher.update([u8::from(salt.is_some())]);
        let salt = salt.unwrap_or_default();
        hasher.update((salt.len() as u64).to_le_bytes());
        hasher.update(salt);
        BlockHash(hasher.finalize().into())
    }

    /// The block of these tokens after this one.
    pub fn child(self, tokens: &[u32]) -> BlockHash {
        let mut hasher = Sha256::new_with_prefix("taper block 1\n");
        hasher.update(self.0);
        hasher.update((tokens.len() as u64).to_le_bytes());
        tokens.iter().for_each(|token| hasher.update(token.to_le_bytes()));
        BlockHash(hasher.finalize().into())
    }

    /// Reads what `Display` writes.
    pub(crate) fn from_hex(text: &str) -> Option<BlockHash> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut hash = [0; 32];
        if text.len() != 2 * hash.len() {
            return None;
        }
        for (byte, digits) in hash.iter_mut().zip(text.as_bytes().as_chunks::<2>().0) {
            *byte = digit(digits[0])? << 4 | digit(digits[1])?;
        }
        Some(BlockHash(hash))
    }
}

/// 64 hexadecimal digits.
impl fmt::Display for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockHash({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn assert_distinct(hashes: &[BlockHash]) {
        assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), hashes.len(), "{hashes:?}");
    }

    #[test]
    fn identities_and_salts_have_chains_of_their_own_however_they_are_cut() {
        assert_distinct(&[
            BlockHash::root("ab", None),
            BlockHash::root("ab", Some("")),
            BlockHash::root("a", Some("b")),
            BlockHash::root("", Some("ab")),
            BlockHash::root("ab", Some("b")),
            BlockHash::root("abb", None),
            BlockHash::root("", None),
        ]);
        let of_salt = |salt| BlockHash::root("model", salt).child(&[1, 2]).child(&[3]);
        assert_distinct(&[of_salt(None), of_salt(Some("x")), of_salt(Some("y"))]);
    }

    #[test]
    fn a_block_is_named_by_all_tokens_up_to_its_end_and_where_blocks_end() {
        let root = BlockHash::root("model", None);
        assert_distinct(&[
            root,
            root.child(&[]),
            root.child(&[1, 2, 3]),
            root.child(&[1, 2]).child(&[3]),
            root.child(&[1]).child(&[2, 3]),
            root.child(&[3]),
            root.child(&[0x0201]),
            root.child(&[2, 1, 3]),
        ]);
        assert_eq!(root.child(&[1, 2]).child(&[3]), root.child(&[1, 2]).child(&[3]));
    }

    /// The numbers of Python's hashlib over the bytes that the module's documentation says.
    #[test]
    fn hashes_are_those_of_the_documented_bytes() {
        let root = BlockHash::root("model", Some("salt"));
        assert_eq!(root.to_string(), "adda1d9f92d741db1421c50a67beff5b8633e32ef0f09712e29fc949a5e93e02");
        assert_eq!(
            root.child(&[1, 258]).to_string(),
            "3bfced7f37a86565b804574731d202c5438a2198777f3a939a69d3b876e70ea7"
        );
    }

    proptest! {
        #[test]
        fn what_is_displayed_is_read_again(bytes: [u8; 32]) {
            prop_assert_eq!(BlockHash::from_hex(&BlockHash(bytes).to_string()), Some(BlockHash(bytes)));
        }

        #[test]
        fn other_texts_are_no_hashes(text in "[0-9a-gA-F/é]{0,66}") {
            let is_hash = text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            prop_assert_eq!(BlockHash::from_hex(&text).is_some(), is_hash);
        }
    }
}
