//! Which instruction sets this machine has, and for each the table of its kernels. Features are asked for here and nowhere
//! else; a table is only handed out for a set that the processor has, which is what every call through it relies on.

use super::gemm;
use crate::Error;

#[cfg(target_arch = "x86_64")]
mod amx;

/// An instruction set that kernels are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust.
    Portable,
    /// NEON, which every 64-bit Arm processor has.
    Neon,
    /// NEON with dot products of bytes (and all of [`Isa::Neon`]).
    NeonDot,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI (and all of [`Isa::Avx2`]).
    Avx512,
    /// [`Isa::Avx512`] and its dot products of bfloat16.
    Avx512Bf16,
    /// AMX with int8 tiles, which the system has to permit (and all of [`Isa::Avx512`]).
    Amx,
    /// The kernels of [`Isa::Amx`] with tiles in memory: for tests on machines with AVX-512. Not among [`Isa::ALL`].
    #[doc(hidden)]
    AmxEmulated,
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
    pub const ALL: [Isa; 7] =
        [Isa::Portable, Isa::Neon, Isa::NeonDot, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx];

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Neon => "neon",
            Isa::NeonDot => "neon-dot",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Amx => "amx",
            Isa::AmxEmulated => "amx-emulated",
        }
    }

    /// What the processor must have, in the words of its feature flags.
    fn needs(self) -> &'static str {
        match self {
            Isa::Portable => "nothing",
            Isa::Neon => "asimd",
            Isa::NeonDot => "asimd, asimddp",
            Isa::Avx2 => "avx2, fma, f16c",
            Isa::Avx512Bf16 => "what avx512 needs, and avx512bf16",
            Isa::Avx512 | Isa::AmxEmulated => "avx2, fma, f16c, avx512f, avx512bw, avx512vl, avx512dq, avx512vnni",
            Isa::Amx => "what avx512 needs, amx_tile, amx_int8, and the system's permission to use tiles",
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
                Isa::Neon | Isa::NeonDot => false,
                Isa::Avx2 => avx2(),
                Isa::Avx512 => avx512(),
                Isa::Avx512Bf16 => avx512() && is_x86_feature_detected!("avx512bf16"),
                Isa::Amx => Isa::Avx512.is_available() && amx::tiles() == amx::Tiles::Permitted,
                Isa::AmxEmulated => Isa::Avx512.is_available(),
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            match self {
                Isa::Portable => true,
                Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
                Isa::NeonDot => Isa::Neon.is_available() && std::arch::is_aarch64_feature_detected!("dotprod"),
                Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx | Isa::AmxEmulated => false,
            }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            self == Isa::Portable
        }
    }

    /// What keeps a set that the processor has from being used; `None` where nothing does, or where it does not have it.
    pub fn refusal(self) -> Option<&'static str> {
        #[cfg(target_arch = "x86_64")]
        if self == Isa::Amx && Isa::Avx512.is_available() && amx::tiles() == amx::Tiles::Refused {
            return Some("the system did not permit tiles (arch_prctl ARCH_REQ_XCOMP_PERM; Linux 5.16 or newer does)");
        }
        None
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
        let Some(isa) = Isa::ALL.into_iter().chain([Isa::AmxEmulated]).find(|isa| isa.name() == name) else {
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
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => &NEON,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => &NEON_DOT,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &AVX2,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &AVX512,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => &AVX512_BF16,
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => &AMX,
            #[cfg(target_arch = "x86_64")]
            Isa::AmxEmulated => &AMX_EMULATED,
            _ => unreachable!("not available on this architecture"),
        }
    }
}

static PORTABLE: Table = Table { isa: Isa::Portable, gemm: gemm::Kernels::PORTABLE };
#[cfg(target_arch = "aarch64")]
static NEON: Table = Table { isa: Isa::Neon, gemm: gemm::Kernels::NEON };
#[cfg(target_arch = "aarch64")]
static NEON_DOT: Table = Table { isa: Isa::NeonDot, gemm: gemm::Kernels::NEON_DOT };
#[cfg(target_arch = "x86_64")]
static AVX2: Table = Table { isa: Isa::Avx2, gemm: gemm::Kernels::AVX2 };
#[cfg(target_arch = "x86_64")]
static AVX512: Table = Table { isa: Isa::Avx512, gemm: gemm::Kernels::AVX512 };
#[cfg(target_arch = "x86_64")]
static AVX512_BF16: Table = Table { isa: Isa::Avx512Bf16, gemm: gemm::Kernels::AVX512_BF16 };
#[cfg(target_arch = "x86_64")]
static AMX: Table = Table { isa: Isa::Amx, gemm: gemm::Kernels::AMX };
#[cfg(target_arch = "x86_64")]
static AMX_EMULATED: Table = Table { isa: Isa::AmxEmulated, gemm: gemm::Kernels::AMX_EMULATED };

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
    fn a_refusal_explains_a_set_that_is_not_available() {
        for isa in Isa::ALL {
            assert!(isa.refusal().is_none() || !isa.is_available(), "{isa:?}");
        }
    }

    #[test]
    fn emulation_is_only_found_by_its_name() {
        assert!(!Isa::available().contains(&Isa::AmxEmulated) && Isa::best() != Isa::AmxEmulated);
        assert_eq!(Isa::parse("amx-emulated").is_ok(), Isa::Avx512.is_available());
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
