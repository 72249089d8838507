//! The kernels of `kernels/cuda/*.cu` by name, with what they are given.

use std::ffi::CStr;

macro_rules! kernels {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $signature:literal;)*) => {
        /// A kernel.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kernel { $($(#[$doc])* $variant),* }

        impl Kernel {
            /// All of them; each stands at its own number.
            pub const ALL: &[Kernel] = &[$(Kernel::$variant),*];

            /// Its name in the image.
            pub fn name(self) -> &'static CStr {
                match self { $(Kernel::$variant => $name),* }
            }

            /// A letter per parameter: `p` pointer, `i` int, `u` unsigned, `f` float. The simulator has the types of the
            /// source, and its tests compare.
            pub fn signature(self) -> &'static str {
                match self { $(Kernel::$variant => $signature),* }
            }
        }
    };
}

kernels! {
    /// Reads memory, as fast as the device can.
    ReadStream = c"read_stream", "pup";
    /// Softmax of rows in three passes, a block of 1024 threads per row.
    SoftmaxThreePass = c"softmax_three_pass", "ppi";
    /// Online, a warp per row.
    SoftmaxOnline = c"softmax_online", "ppii";
    /// Online, a block of 128 threads per row.
    SoftmaxBlock = c"softmax_block", "ppi";
    /// Several blocks per row: the states of all rows.
    SoftmaxReduce = c"softmax_reduce", "piippp";
    /// Several blocks per row: the division by what [`Kernel::SoftmaxReduce`] found.
    SoftmaxNormalise = c"softmax_normalise", "ppiip";
    /// Several blocks per row, which wait for each other.
    SoftmaxCooperative = c"softmax_cooperative", "ppiipp";
    /// Root mean square norm of rows.
    RmsNorm = c"rms_norm", "pppif";
    /// The norm of query and key heads.
    QkNorm = c"qk_norm", "pppiiif";
    /// Cosines and sines of a step's positions.
    RopeAngles = c"rope_angles", "pppif";
    /// Rotation, and the store into a cache of bf16.
    RopeKvStoreBf16 = c"rope_kv_store_bf16", "ppppiiiiii";
    /// Rotation, and the store into a cache of f16.
    RopeKvStoreF16 = c"rope_kv_store_f16", "ppppiiiiii";
    /// Rotation, and the store into a cache of f32.
    RopeKvStoreF32 = c"rope_kv_store_f32", "ppppiiiiii";
    /// Rotation, and the store into a cache of e4m3.
    RopeKvStoreF8 = c"rope_kv_store_f8", "ppppiiiiii";
    /// Rows of a table of f32.
    EmbedF32 = c"embed_f32", "pppiii";
    /// Rows of a table of f16.
    EmbedF16 = c"embed_f16", "pppiii";
    /// Rows of a table of bf16.
    EmbedBf16 = c"embed_bf16", "pppiii";
    /// Rows of a table of q2_k.
    EmbedQ2K = c"embed_q2_k", "pppiii";
    /// Rows of a table of q3_k.
    EmbedQ3K = c"embed_q3_k", "pppiii";
    /// Rows of a buffer, by number.
    GatherRows = c"gather_rows", "pppi";
    /// SwiGLU's middle.
    SiluMul = c"silu_mul", "ppi";
    /// An addition.
    Add = c"add", "ppi";
    /// A block of the KV cache, all layers.
    CopyKvBlock = c"copy_kv_block", "puuii";
    /// Attention with all scores of a row in memory, over a cache of bf16: the baseline.
    AttentionNaiveBf16 = c"attention_naive_bf16", "pppppppiiiif";
    /// Attention with all scores of a row in memory, over a cache of f16: the baseline.
    AttentionNaiveF16 = c"attention_naive_f16", "pppppppiiiif";
    /// Attention with all scores of a row in memory, over a cache of f32: the baseline.
    AttentionNaiveF32 = c"attention_naive_f32", "pppppppiiiif";
    /// Attention with all scores of a row in memory, over a cache of e4m3: the baseline.
    AttentionNaiveF8 = c"attention_naive_f8", "pppppppiiiif";
    /// How large the scores of attention over a cache of bf16 are.
    ObserveScoresBf16 = c"observe_scores_bf16", "ppppppiiif";
    /// How large the scores of attention over a cache of f16 are.
    ObserveScoresF16 = c"observe_scores_f16", "ppppppiiif";
    /// How large the scores of attention over a cache of f32 are.
    ObserveScoresF32 = c"observe_scores_f32", "ppppppiiif";
    /// How large the scores of attention over a cache of e4m3 are.
    ObserveScoresF8 = c"observe_scores_f8", "ppppppiiif";
    /// Attention by multiply-adds over a cache of bf16.
    AttentionPlainBf16 = c"attention_plain_bf16", "ppppppppppiiifi";
    /// Attention by multiply-adds over a cache of f16.
    AttentionPlainF16 = c"attention_plain_f16", "ppppppppppiiifi";
    /// Attention by multiply-adds over a cache of f32.
    AttentionPlainF32 = c"attention_plain_f32", "ppppppppppiiifi";

    /// A product with a matrix of f32, alone or joined with a norm before it and an addition or a gate after it.
    GemvF32 = c"gemv_f32", "ppppppiiiifi";
    /// A product with a matrix of f16, alone or joined with a norm before it and an addition or a gate after it.
    GemvF16 = c"gemv_f16", "ppppppiiiifi";
    /// A product with a matrix of bf16, alone or joined with a norm before it and an addition or a gate after it.
    GemvBf16 = c"gemv_bf16", "ppppppiiiifi";
    /// A product with a matrix of q2_k, alone or joined with a norm before it and an addition or a gate after it.
    GemvQ2K = c"gemv_q2_k", "ppppppiiiifi";
    /// A product with a matrix of q3_k, alone or joined with a norm before it and an addition or a gate after it.
    GemvQ3K = c"gemv_q3_k", "ppppppiiiifi";
    /// Rotation, store and attention of rows of different sequences, over a cache of bf16.
    AttentionDecodeBf16 = c"attention_decode_bf16", "pppppppppppppiiiiiffi";
    /// Rotation, store and attention of rows of different sequences, over a cache of f16.
    AttentionDecodeF16 = c"attention_decode_f16", "pppppppppppppiiiiiffi";
    /// Rotation, store and attention of rows of different sequences, over a cache of f32.
    AttentionDecodeF32 = c"attention_decode_f32", "pppppppppppppiiiiiffi";
    /// Attention on tensor cores with heads of 64 over a cache of bf16.
    AttentionMmaBf16Dim64 = c"attention_mma_bf16_64", "ppppppppppppppiiiiiffi";
    /// Attention on tensor cores with heads of 96 over a cache of bf16.
    AttentionMmaBf16Dim96 = c"attention_mma_bf16_96", "ppppppppppppppiiiiiffi";
    /// Attention on tensor cores with heads of 128 over a cache of bf16.
    AttentionMmaBf16Dim128 = c"attention_mma_bf16_128", "ppppppppppppppiiiiiffi";
    /// Attention on tensor cores with heads of 256 over a cache of bf16.
    AttentionMmaBf16Dim256 = c"attention_mma_bf16_256", "ppppppppppppppiiiiiffi";
    /// Attention on tensor cores with heads of 64 over a cache of f16.
    AttentionMmaF16Dim64 = c"attention_mma_f16_64", "ppppppppppppppiiiiiffi";
    /// Attention on tensor cores with heads of 96 over a cache of f16.
    AttentionMmaF16Dim96 = c"attention_mma_f16_96", "ppppppppppppppiiiiiffi";
    /// Attention on tensor cores with heads of 128 over a cache of f16.
    AttentionMmaF16Dim128 = c"attention_mma_f16_128", "ppppppppppppppiiiiiffi";
    /// Attention on tensor cores with heads of 256 over a cache of f16.
    AttentionMmaF16Dim256 = c"attention_mma_f16_256", "ppppppppppppppiiiiiffi";
    /// Attention on tensor cores with heads of 64 over a cache of e4m3.
    AttentionMmaF8Dim64 = c"attention_mma_f8_64", "ppppppppppppppiiiiiffi";
    /// Attention on tensor cores with heads of 96 over a cache of e4m3.
    AttentionMmaF8Dim96 = c"attention_mma_f8_96", "ppppppppppppppiiiiiffi";
    /// Attention on tensor cores with heads of 128 over a cache of e4m3.
    AttentionMmaF8Dim128 = c"attention_mma_f8_128", "ppppppppppppppiiiiiffi";
    /// Attention on tensor cores with heads of 256 over a cache of e4m3.
    AttentionMmaF8Dim256 = c"attention_mma_f8_256", "ppppppppppppppiiiiiffi";
    /// Tiles of a matrix of f16 for [`Kernel::GemmMmaF16R8`] and its kind.
    ShuffleF16 = c"shuffle_f16", "ppii";
    /// Tiles of a matrix of bf16 for [`Kernel::GemmMmaBf16R8`] and its kind.
    ShuffleBf16 = c"shuffle_bf16", "ppii";
    /// Tiles of a matrix of q4_0 for [`Kernel::GemmMmaQ4_0R8`] and its kind.
    ShuffleQ4_0 = c"shuffle_q4_0", "ppii";
    /// Tiles of a matrix of q4_1 for [`Kernel::GemmMmaQ4_1R8`] and its kind.
    ShuffleQ4_1 = c"shuffle_q4_1", "ppii";
    /// Tiles of a matrix of q5_0 for [`Kernel::GemmMmaQ5_0R8`] and its kind.
    ShuffleQ5_0 = c"shuffle_q5_0", "ppii";
    /// Tiles of a matrix of q5_1 for [`Kernel::GemmMmaQ5_1R8`] and its kind.
    ShuffleQ5_1 = c"shuffle_q5_1", "ppii";
    /// Tiles of a matrix of q8_0 for [`Kernel::GemmMmaQ8_0R8`] and its kind, and of e4m3, whose bytes and scales lie alike.
    ShuffleQ8_0 = c"shuffle_q8_0", "ppii";
    /// Tiles of a matrix of q4_k for [`Kernel::GemmMmaQ4KR8`] and its kind.
    ShuffleQ4K = c"shuffle_q4_k", "ppii";
    /// Tiles of a matrix of q5_k for [`Kernel::GemmMmaQ5KR8`] and its kind.
    ShuffleQ5K = c"shuffle_q5_k", "ppii";
    /// Tiles of a matrix of q6_k for [`Kernel::GemmMmaQ6KR8`] and its kind.
    ShuffleQ6K = c"shuffle_q6_k", "ppii";
    /// A product of up to 8 rows a block with tiles of f16.
    GemmMmaF16R8 = c"gemm_mma_f16_r8", "ppppppiiiiiif";
    /// A product of up to 16 rows a block with tiles of f16.
    GemmMmaF16R16 = c"gemm_mma_f16_r16", "ppppppiiiiiif";
    /// A product of up to 32 rows a block with tiles of f16.
    GemmMmaF16R32 = c"gemm_mma_f16_r32", "ppppppiiiiiif";
    /// A product of up to 64 rows a block with tiles of f16.
    GemmMmaF16R64 = c"gemm_mma_f16_r64", "ppppppiiiiiif";
    /// A product of up to 8 rows a block with tiles of bf16.
    GemmMmaBf16R8 = c"gemm_mma_bf16_r8", "ppppppiiiiiif";
    /// A product of up to 16 rows a block with tiles of bf16.
    GemmMmaBf16R16 = c"gemm_mma_bf16_r16", "ppppppiiiiiif";
    /// A product of up to 32 rows a block with tiles of bf16.
    GemmMmaBf16R32 = c"gemm_mma_bf16_r32", "ppppppiiiiiif";
    /// A product of up to 64 rows a block with tiles of bf16.
    GemmMmaBf16R64 = c"gemm_mma_bf16_r64", "ppppppiiiiiif";
    /// A product of up to 8 rows a block with tiles of q4_0.
    GemmMmaQ4_0R8 = c"gemm_mma_q4_0_r8", "ppppppiiiiiif";
    /// A product of up to 16 rows a block with tiles of q4_0.
    GemmMmaQ4_0R16 = c"gemm_mma_q4_0_r16", "ppppppiiiiiif";
    /// A product of up to 32 rows a block with tiles of q4_0.
    GemmMmaQ4_0R32 = c"gemm_mma_q4_0_r32", "ppppppiiiiiif";
    /// A product of up to 64 rows a block with tiles of q4_0.
    GemmMmaQ4_0R64 = c"gemm_mma_q4_0_r64", "ppppppiiiiiif";
    /// A product of up to 8 rows a block with tiles of q4_1.
    GemmMmaQ4_1R8 = c"gemm_mma_q4_1_r8", "ppppppiiiiiif";
    /// A product of up to 16 rows a block with tiles of q4_1.
    GemmMmaQ4_1R16 = c"gemm_mma_q4_1_r16", "ppppppiiiiiif";
    /// A product of up to 32 rows a block with tiles of q4_1.
    GemmMmaQ4_1R32 = c"gemm_mma_q4_1_r32", "ppppppiiiiiif";
    /// A product of up to 64 rows a block with tiles of q4_1.
    GemmMmaQ4_1R64 = c"gemm_mma_q4_1_r64", "ppppppiiiiiif";
    /// A product of up to 8 rows a block with tiles of q5_0.
    GemmMmaQ5_0R8 = c"gemm_mma_q5_0_r8", "ppppppiiiiiif";
    /// A product of up to 16 rows a block with tiles of q5_0.
    GemmMmaQ5_0R16 = c"gemm_mma_q5_0_r16", "ppppppiiiiiif";
    /// A product of up to 32 rows a block with tiles of q5_0.
    GemmMmaQ5_0R32 = c"gemm_mma_q5_0_r32", "ppppppiiiiiif";
    /// A product of up to 64 rows a block with tiles of q5_0.
    GemmMmaQ5_0R64 = c"gemm_mma_q5_0_r64", "ppppppiiiiiif";
    /// A product of up to 8 rows a block with tiles of q5_1.
    GemmMmaQ5_1R8 = c"gemm_mma_q5_1_r8", "ppppppiiiiiif";
    /// A product of up to 16 rows a block with tiles of q5_1.
    GemmMmaQ5_1R16 = c"gemm_mma_q5_1_r16", "ppppppiiiiiif";
    /// A product of up to 32 rows a block with tiles of q5_1.
    GemmMmaQ5_1R32 = c"gemm_mma_q5_1_r32", "ppppppiiiiiif";
    /// A product of up to 64 rows a block with tiles of q5_1.
    GemmMmaQ5_1R64 = c"gemm_mma_q5_1_r64", "ppppppiiiiiif";
    /// A product of up to 8 rows a block with tiles of q8_0.
    GemmMmaQ8_0R8 = c"gemm_mma_q8_0_r8", "ppppppiiiiiif";
    /// A product of up to 16 rows a block with tiles of q8_0.
    GemmMmaQ8_0R16 = c"gemm_mma_q8_0_r16", "ppppppiiiiiif";
    /// A product of up to 32 rows a block with tiles of q8_0.
    GemmMmaQ8_0R32 = c"gemm_mma_q8_0_r32", "ppppppiiiiiif";
    /// A product of up to 64 rows a block with tiles of q8_0.
    GemmMmaQ8_0R64 = c"gemm_mma_q8_0_r64", "ppppppiiiiiif";
    /// A product of up to 8 rows a block with tiles of q4_k.
    GemmMmaQ4KR8 = c"gemm_mma_q4_k_r8", "ppppppiiiiiif";
    /// A product of up to 16 rows a block with tiles of q4_k.
    GemmMmaQ4KR16 = c"gemm_mma_q4_k_r16", "ppppppiiiiiif";
    /// A product of up to 32 rows a block with tiles of q4_k.
    GemmMmaQ4KR32 = c"gemm_mma_q4_k_r32", "ppppppiiiiiif";
    /// A product of up to 64 rows a block with tiles of q4_k.
    GemmMmaQ4KR64 = c"gemm_mma_q4_k_r64", "ppppppiiiiiif";
    /// A product of up to 8 rows a block with tiles of q5_k.
    GemmMmaQ5KR8 = c"gemm_mma_q5_k_r8", "ppppppiiiiiif";
    /// A product of up to 16 rows a block with tiles of q5_k.
    GemmMmaQ5KR16 = c"gemm_mma_q5_k_r16", "ppppppiiiiiif";
    /// A product of up to 32 rows a block with tiles of q5_k.
    GemmMmaQ5KR32 = c"gemm_mma_q5_k_r32", "ppppppiiiiiif";
    /// A product of up to 64 rows a block with tiles of q5_k.
    GemmMmaQ5KR64 = c"gemm_mma_q5_k_r64", "ppppppiiiiiif";
    /// A product of up to 8 rows a block with tiles of q6_k.
    GemmMmaQ6KR8 = c"gemm_mma_q6_k_r8", "ppppppiiiiiif";
    /// A product of up to 16 rows a block with tiles of q6_k.
    GemmMmaQ6KR16 = c"gemm_mma_q6_k_r16", "ppppppiiiiiif";
    /// A product of up to 32 rows a block with tiles of q6_k.
    GemmMmaQ6KR32 = c"gemm_mma_q6_k_r32", "ppppppiiiiiif";
    /// A product of up to 64 rows a block with tiles of q6_k.
    GemmMmaQ6KR64 = c"gemm_mma_q6_k_r64", "ppppppiiiiiif";
    /// A product of up to 8 rows a block with tiles of e4m3.
    GemmMmaF8R8 = c"gemm_mma_f8_r8", "ppppppiiiiiif";
    /// A product of up to 16 rows a block with tiles of e4m3.
    GemmMmaF8R16 = c"gemm_mma_f8_r16", "ppppppiiiiiif";
    /// A product of up to 64 rows a block with tiles of e4m3.
    GemmMmaF8R64 = c"gemm_mma_f8_r64", "ppppppiiiiiif";
    /// A product of up to 16 rows with tiles of bf16, on Hopper's tensor cores.
    GemmWgmmaBf16Rows16 = c"gemm_wgmma_bf16_16", "ppppppiiii";
    /// A product of up to 32 rows with tiles of bf16, on Hopper's tensor cores.
    GemmWgmmaBf16Rows32 = c"gemm_wgmma_bf16_32", "ppppppiiii";
    /// A product of up to 64 rows with tiles of bf16, on Hopper's tensor cores.
    GemmWgmmaBf16Rows64 = c"gemm_wgmma_bf16_64", "ppppppiiii";
    /// A product of up to 128 rows with tiles of bf16, on Hopper's tensor cores.
    GemmWgmmaBf16Rows128 = c"gemm_wgmma_bf16_128", "ppppppiiii";
    /// Rows of a table in tiles of f16.
    EmbedTilesF16 = c"embed_tiles_f16", "pppiii";
    /// Rows of a table in tiles of bf16.
    EmbedTilesBf16 = c"embed_tiles_bf16", "pppiii";
    /// Rows of a table in tiles of q4_0.
    EmbedTilesQ4_0 = c"embed_tiles_q4_0", "pppiii";
    /// Rows of a table in tiles of q4_1.
    EmbedTilesQ4_1 = c"embed_tiles_q4_1", "pppiii";
    /// Rows of a table in tiles of q5_0.
    EmbedTilesQ5_0 = c"embed_tiles_q5_0", "pppiii";
    /// Rows of a table in tiles of q5_1.
    EmbedTilesQ5_1 = c"embed_tiles_q5_1", "pppiii";
    /// Rows of a table in tiles of q8_0.
    EmbedTilesQ8_0 = c"embed_tiles_q8_0", "pppiii";
    /// Rows of a table in tiles of q4_k.
    EmbedTilesQ4K = c"embed_tiles_q4_k", "pppiii";
    /// Rows of a table in tiles of q5_k.
    EmbedTilesQ5K = c"embed_tiles_q5_k", "pppiii";
    /// Rows of a table in tiles of q6_k.
    EmbedTilesQ6K = c"embed_tiles_q6_k", "pppiii";
    /// Rows of a table in tiles of e4m3.
    EmbedTilesF8 = c"embed_tiles_f8", "pppiii";
    /// Rows of bf16 of tiles of bf16.
    ExpandBf16 = c"expand_bf16", "ppii";
    /// Rows of bf16 of tiles of q4_0.
    ExpandQ4_0 = c"expand_q4_0", "ppii";
    /// Rows of bf16 of tiles of q4_1.
    ExpandQ4_1 = c"expand_q4_1", "ppii";
    /// Rows of bf16 of tiles of q5_0.
    ExpandQ5_0 = c"expand_q5_0", "ppii";
    /// Rows of bf16 of tiles of q5_1.
    ExpandQ5_1 = c"expand_q5_1", "ppii";
    /// Rows of bf16 of tiles of q8_0.
    ExpandQ8_0 = c"expand_q8_0", "ppii";
    /// Rows of bf16 of tiles of q4_k.
    ExpandQ4K = c"expand_q4_k", "ppii";
    /// Rows of bf16 of tiles of q5_k.
    ExpandQ5K = c"expand_q5_k", "ppii";
    /// Rows of bf16 of tiles of q6_k.
    ExpandQ6K = c"expand_q6_k", "ppii";
    /// Rows of bf16 of tiles of e4m3.
    ExpandF8 = c"expand_f8", "ppii";
    /// Elements rounded to bf16.
    RoundBf16 = c"round_bf16", "ppi";
    /// Tokens drawn from rows of logits.
    ChooseTokens = c"choose_tokens", "pppi";
}

impl Kernel {
    /// Its place in [`Kernel::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Whether it waits by itself for what the kernel before it wrote (`wait_for_previous` in `kernels/cuda/ptx.cuh`), and so may
    /// begin before that one has ended.
    pub fn waits_for_previous(self) -> bool {
        const FILES: [&[u8]; 4] = [b"gemv_", b"gemm_mma_", b"attention_decode_", b"attention_mma_"];
        FILES.iter().any(|file| self.name().to_bytes().starts_with(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_stands_at_its_number_and_has_a_name_of_its_own() {
        let mut names: Vec<&CStr> = Kernel::ALL.iter().map(|kernel| kernel.name()).collect();
        assert!(Kernel::ALL.iter().enumerate().all(|(index, kernel)| kernel.index() == index));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Kernel::ALL.len());
    }

    #[test]
    fn the_kernels_that_wait_are_those_whose_files_say_so() {
        let sources = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/cuda")).unwrap();
        let files =
            sources.map(|file| file.unwrap().path()).filter(|file| file.extension().is_some_and(|end| end == "cu"));
        let says_so =
            |file: &std::path::PathBuf| std::fs::read_to_string(file).unwrap().contains("wait_for_previous()");
        let mut expected: Vec<String> =
            files.filter(says_so).map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
        let waiting = Kernel::ALL.iter().filter(|kernel| kernel.waits_for_previous());
        let mut actual: Vec<String> = waiting
            .map(|kernel| {
                let name = kernel.name().to_str().unwrap();
                expected.iter().find(|file| name.starts_with(file.as_str())).unwrap_or(&name.to_owned()).clone()
            })
            .collect();
        expected.sort_unstable();
        actual.sort_unstable();
        actual.dedup();
        assert_eq!(actual, expected);
    }
}
