//! A block as a file: everything that says whether the bytes are whole and the right ones, then the bytes.
//!
//! ```text
//! magic "taperkv1" | [u8; 32] folder | [u8; 32] block | u64 len | [u8; 32] checksum | bytes
//! ```
//!
//! `folder` is the digest of the identity, `block` the block's hash, `checksum` the SHA-256 of all before it and of the bytes.

use crate::BlockHash;
use sha2::{Digest, Sha256};
use std::io::{self, Read, Write};

const MAGIC: &[u8; 8] = b"taperkv1";
/// Bytes that the checksum covers beside those of the block.
const SIGNED: usize = MAGIC.len() + 32 + 32 + 8;
/// Bytes before those of the block.
pub(super) const HEADER: usize = SIGNED + 32;

/// What a file has to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    pub(super) folder: [u8; 32],
    pub(super) hash: BlockHash,
    pub(super) len: usize,
}

impl Expected {
    fn header(self, bytes: &[u8]) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        let len = (self.len as u64).to_le_bytes();
        let signed: [&[u8]; 4] = [MAGIC, &self.folder, &self.hash.0, &len];
        header[..SIGNED].copy_from_slice(&signed.concat());
        let checksum = Sha256::new_with_prefix(&header[..SIGNED]).chain_update(bytes).finalize();
        header[SIGNED..].copy_from_slice(&checksum);
        header
    }

    /// Writes the file of a block.
    pub(super) fn write(self, bytes: &[u8], file: &mut dyn Write) -> io::Result<()> {
        assert_eq!(bytes.len(), self.len, "a block has the bytes of every block");
        file.write_all(&self.header(bytes))?;
        file.write_all(bytes)?;
        file.flush()
    }

    /// Reads the bytes of the block into `bytes`. False when the file is another one, or damaged; `bytes` are of no use then.
    pub(super) fn read(self, file: &mut impl Read, bytes: &mut Vec<u8>) -> io::Result<bool> {
        let mut header = Vec::with_capacity(HEADER);
        file.by_ref().take(HEADER as u64).read_to_end(&mut header)?;
        // One more than there should be, to see that nothing follows.
        bytes.clear();
        bytes.reserve_exact(self.len + 1);
        file.by_ref().take(self.len as u64 + 1).read_to_end(bytes)?;
        Ok(bytes.len() == self.len && header == self.header(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn expected(len: usize) -> Expected {
        Expected { folder: [3; 32], hash: BlockHash([7; 32]), len }
    }

    fn read(expected: Expected, mut file: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = vec![9; 3];
        expected.read(&mut file, &mut bytes).unwrap().then_some(bytes)
    }

    fn written(bytes: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        expected(bytes.len()).write(bytes, &mut file).unwrap();
        file
    }

    #[test]
    fn what_was_written_is_read_again_and_not_taken_for_another_block() {
        let bytes: Vec<u8> = (0..200).collect();
        let file = written(&bytes);
        assert_eq!(file.len(), HEADER + 200);
        assert_eq!(read(expected(200), &file), Some(bytes));
        assert_eq!(read(Expected { hash: BlockHash([8; 32]), ..expected(200) }, &file), None);
        assert_eq!(read(Expected { folder: [8; 32], ..expected(200) }, &file), None);
        assert_eq!(read(expected(199), &file), None);
        assert_eq!(read(expected(201), &file), None);
    }

    proptest! {
        #[test]
        fn a_file_cut_at_any_byte_is_nothing(bytes in prop::collection::vec(any::<u8>(), 0..99), cut: prop::sample::Index) {
            let file = written(&bytes);
            let cut = &file[..cut.index(file.len())];
            prop_assert_eq!(read(expected(bytes.len()), cut), None);
        }

        #[test]
        fn a_file_with_any_bit_turned_is_nothing(
            bytes in prop::collection::vec(any::<u8>(), 0..99), at: prop::sample::Index, bit in 0..8,
        ) {
            let mut file = written(&bytes);
            let at = at.index(file.len());
            file[at] ^= 1_u8 << bit;
            prop_assert_eq!(read(expected(bytes.len()), &file), None);
        }

        #[test]
        fn a_file_with_something_behind_it_is_nothing(bytes in prop::collection::vec(any::<u8>(), 0..99), tail: u8) {
            let mut file = written(&bytes);
            file.push(tail);
            prop_assert_eq!(read(expected(bytes.len()), &file), None);
        }
    }
}
