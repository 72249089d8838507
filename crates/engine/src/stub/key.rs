//! What the stub's KV cache is made of.

/// What the stub keeps of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) token: u32,
    /// Of the sequence up to this token: a real key depends on all of them.
    pub(super) past: u64,
}

impl Key {
    pub(super) const BYTES: usize = 12;

    /// A slot that was never written has a token that no vocabulary has.
    pub(super) fn to_bytes(key: Option<Key>) -> [u8; Key::BYTES] {
        let Key { token, past } = key.unwrap_or(Key { token: u32::MAX, past: 0 });
        let mut bytes = [0; Key::BYTES];
        bytes[..4].copy_from_slice(&token.to_le_bytes());
        bytes[4..].copy_from_slice(&past.to_le_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; Key::BYTES]) -> Option<Key> {
        let [a, b, c, d, past @ ..] = bytes;
        let token = u32::from_le_bytes([a, b, c, d]);
        (token != u32::MAX).then_some(Key { token, past: u64::from_le_bytes(past) })
    }
}

/// The keys of a sequence: digests are FNV-1a over tokens.
pub(super) fn keys(tokens: &[u32]) -> impl Iterator<Item = Key> {
    tokens.iter().scan(0xcbf2_9ce4_8422_2325_u64, |past, &token| {
        *past = (*past ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        Some(Key { token, past: *past })
    })
}
