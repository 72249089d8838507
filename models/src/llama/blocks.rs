//! Blocks of the KV cache as things that can be moved: copied, and taken out and put back as bytes.

use super::Llama;
use crate::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use taper_kernels::{BLOCK_SIZE, Backend, NUMERICS_VERSION};

impl<B: Backend> Llama<B> {
    /// Makes block `to` what block `from` is, in every layer.
    ///
    /// # Panics
    /// Like [`Llama::export_block`] and [`Llama::import_block`], when the cache has no such block.
    pub fn copy_block(&mut self, from: u32, to: u32) {
        self.backend.copy_kv_block(&mut self.cache, from, to);
    }

    /// Appends the bytes of a block to `out`, [`Llama::block_bytes`] of them.
    pub fn export_block(&self, block: u32, out: &mut Vec<u8>) {
        self.backend.export_kv_block(&self.cache, block, out);
    }

    /// Makes a block what was exported by a network of the same [`Llama::identity`], to the bit.
    ///
    /// # Errors
    /// When the bytes are not as many as a block has; the block stays what it was.
    pub fn import_block(&mut self, block: u32, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.backend.import_kv_block(&mut self.cache, block, bytes)?)
    }

    /// Bytes of a block, all layers.
    pub fn block_bytes(&self) -> usize {
        self.backend.kv_block_bytes(self.layout) * self.layout.num_layers
    }

    /// Says which file the weights are from, by a digest of all of its content, and so makes the [`Llama::identity`] of this
    /// network that of every network loaded from such a file.
    pub fn set_file_digest(&mut self, digest: String) {
        self.file_digest = digest;
    }

    /// Everything that decides the bytes of a block beside its tokens and those before it: equal for two networks only if
    /// they fill blocks alike. It changes with [`Llama::set_softmax`] and [`Llama::set_attention`]. Before
    /// [`Llama::set_file_digest`] no two networks share one.
    pub fn identity(&self) -> String {
        let Llama { config, layout, quantization, .. } = self;
        let weights =
            quantization.map_or_else(String::new, |quantization| format!(", weights {}", quantization.name()));
        let info = self.backend.info();
        format!(
            "file {file}{weights}; numerics {NUMERICS_VERSION} {name} {class}; {architecture}, {layers} layers, \
             {heads:?}, {BLOCK_SIZE} keys of {dtype:?} a block; eps {eps:?}; {rope:?}; {attention:?} {softmax:?}",
            file = self.file_digest,
            name = info.name,
            class = info.numerics_class,
            architecture = config.architecture,
            layers = layout.num_layers,
            heads = config.heads,
            dtype = layout.dtype,
            eps = config.norm_eps,
            rope = config.rope,
            attention = self.attention,
            softmax = self.softmax,
        )
    }
}

/// Stands for a file that nobody has named, in this process and at this time.
pub(super) fn digest_of_nothing() -> String {
    static LOADED: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let number = LOADED.fetch_add(1, Ordering::Relaxed);
    format!("unnamed, number {number} of process {} at {since:?}", std::process::id())
}
