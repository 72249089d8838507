//! Which kernel serves each operation, in words: what `taper doctor` shows.

use super::isa::Isa;

/// An operation of the backend and what computes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Its name, as in the backend's trait; for products, with the types of the weights.
    pub name: &'static str,
    /// The kernel that serves it with this instruction set.
    pub kernel: &'static str,
}

/// The kernels of an instruction set.
pub fn operations(isa: Isa) -> Vec<Operation> {
    let lanes = match isa {
        Isa::Portable => "sixteen lanes of plain Rust",
        Isa::Neon | Isa::NeonDot => "sixteen lanes, NEON",
        Isa::Avx2 => "sixteen lanes, AVX2 + FMA",
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx | Isa::AmxEmulated => "sixteen lanes, AVX-512",
    };
    let integers = match isa {
        Isa::Portable => "15-bit activations in blocks of 32, plain Rust",
        Isa::Neon => "15-bit activations in blocks of 32, NEON multiply-add of bytes",
        Isa::NeonDot => "15-bit activations in blocks of 32, NEON dot products",
        Isa::Avx2 => "15-bit activations in blocks of 32, AVX2 multiply-add of bytes",
        Isa::Avx512 | Isa::Avx512Bf16 => "15-bit activations in blocks of 32, AVX-512 VNNI dot products",
        Isa::Amx => "15-bit activations in blocks of 32, AMX int8 tiles; few rows AVX-512 VNNI dot products",
        Isa::AmxEmulated => "15-bit activations in blocks of 32, AMX int8 tiles emulated in memory",
    };
    let floats = match isa {
        Isa::Portable => "float32 multiply-add, plain Rust",
        Isa::Neon | Isa::NeonDot => "float32 FMA, NEON",
        Isa::Avx2 => "float32 FMA, AVX2",
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx | Isa::AmxEmulated => "float32 FMA, AVX-512",
    };
    let brains = match isa {
        Isa::Portable | Isa::Neon | Isa::NeonDot => "bfloat16 activations, sums of blocks of 32, plain Rust",
        Isa::Avx2 => "bfloat16 activations, sums of blocks of 32, float32 FMA of AVX2",
        Isa::Avx512 | Isa::Amx | Isa::AmxEmulated => {
            "bfloat16 activations, sums of blocks of 32, float32 FMA of AVX-512"
        }
        Isa::Avx512Bf16 => "bfloat16 activations, sums of blocks of 32, AVX-512 BF16 dot products",
    };
    [
        ("linear, quantized weights", integers),
        ("linear, F32 F16", floats),
        ("linear, BF16", brains),
        ("attention", lanes),
        ("rms_norm, qk_norm", lanes),
        ("rope_kv_store", lanes),
        ("silu_mul", lanes),
        ("add", lanes),
        ("embed, gather_rows, rope_angles", "plain Rust"),
    ]
    .map(|(name, kernel)| Operation { name, kernel })
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_names_the_same_operations() {
        let names = |isa| operations(isa).iter().map(|operation| operation.name).collect::<Vec<_>>();
        for isa in Isa::ALL {
            assert_eq!(names(isa), names(Isa::Portable));
        }
    }
}
