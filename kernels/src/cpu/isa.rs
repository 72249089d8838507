//! Which instruction sets this machine has, and for each the table of its kernels. Features are asked for here and nowhere
//! else; a table is only handed out for a set that the processor has, which is what every call through it relies on.

use super::gemm;
use crate::Error;

/// An instruction set that kernels are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI (and all of [`Isa::Avx2`]).
    Avx512,
    /// [`Isa::Avx512`] and its dot products of bfloat16.
    Avx512Bf16,
}

/// The kernels of one instruction set.
#[derive(Debug)]
pub struct Table {
    /// The set.
    pub isa: Isa,
    /// Matrix products.
    pub(crate) gemm: gemm::Kernels,
}

impl Isa {
    /// Every set, slowest first.
    pub const ALL: [Isa; 4] = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16];

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
        }
    }

    /// What the processor must have, in the words of its feature flags.
    fn needs(self) -> &'static str {
        match self {
            Isa::Portable => "nothing",
            Isa::Avx2 => "avx2, fma, f16c",
            Isa::Avx512 => "avx2, fma, f16c, avx512f, avx512bw, avx512vl, avx512dq, avx512vnni",
            Isa::Avx512Bf16 => "what avx512 needs, and avx512bf16",
        }
    }

    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = || {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            };
            let avx512 = || {
                avx2()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            };
            match self {
                Isa::Portable => true,
                Isa::Avx2 => avx2(),
                Isa::Avx512 => avx512(),
                Isa::Avx512Bf16 => avx512() && is_x86_feature_detected!("avx512bf16"),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Isa::Portable
        }
    }

    /// The sets of this machine, slowest first; never empty.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// The fastest set of this machine.
    pub fn best() -> Isa {
        Isa::ALL.into_iter().rfind(|isa| isa.is_available()).unwrap_or(Isa::Portable)
    }

    /// The set of that name, if this machine has it.
    pub fn parse(name: &str) -> Result<Isa, Error> {
        let names = || Isa::available().into_iter().map(Isa::name).collect::<Vec<_>>().join(", ");
        let Some(isa) = Isa::ALL.into_iter().find(|isa| isa.name() == name) else {
            return Err(Error::Unsupported(format!("unknown instruction set '{name}'; this machine has: {}", names())));
        };
        if !isa.is_available() {
            return Err(Error::Unsupported(format!(
                "this processor cannot run '{name}' (it needs {}); it has: {}",
                isa.needs(),
                names()
            )));
        }
        Ok(isa)
    }

    /// The kernels of this set.
    ///
    /// # Panics
    /// When this machine does not have it; [`Isa::parse`] and [`Isa::available`] give only sets that it has.
    pub fn table(self) -> &'static Table {
        assert!(self.is_available(), "{} is not available on this machine", self.name());
        match self {
            Isa::Portable => &PORTABLE,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &AVX2,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &AVX512,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => &AVX512_BF16,
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 => unreachable!("not available on this architecture"),
        }
    }
}

static PORTABLE: Table = Table { isa: Isa::Portable, gemm: gemm::Kernels::PORTABLE };
#[cfg(target_arch = "x86_64")]
static AVX2: Table = Table { isa: Isa::Avx2, gemm: gemm::Kernels::AVX2 };
#[cfg(target_arch = "x86_64")]
static AVX512: Table = Table { isa: Isa::Avx512, gemm: gemm::Kernels::AVX512 };
#[cfg(target_arch = "x86_64")]
static AVX512_BF16: Table = Table { isa: Isa::Avx512Bf16, gemm: gemm::Kernels::AVX512_BF16 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portable_is_always_there_and_best_is_the_last_available() {
        assert_eq!(Isa::available()[0], Isa::Portable);
        assert_eq!(Isa::available().last(), Some(&Isa::best()));
    }

    #[test]
    fn names_of_available_sets_parse_to_tables_of_their_own() {
        for isa in Isa::available() {
            assert_eq!(Isa::parse(isa.name()).unwrap(), isa);
            assert_eq!(isa.table().isa, isa);
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_list() {
        let message = Isa::parse("avx9").unwrap_err().to_string();
        assert!(message.contains("'avx9'") && message.contains("portable"), "{message}");
    }

    #[test]
    fn a_missing_set_is_refused_with_what_it_needs() {
        for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
            let message = Isa::parse(isa.name()).unwrap_err().to_string();
            assert!(message.contains(isa.needs()), "{message}");
        }
    }
}
