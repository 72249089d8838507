//! Whether this process may use the tile registers of AMX. The processor must have them, the system must keep them across
//! switches of threads, and it wants to be asked before it does: their 8 KiB a thread are saved only for processes that said
//! that they use them. The permission is of the process: threads of before and after share it.

use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// What stands between this process and tiles of int8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tiles {
    /// Nothing: they may be used.
    Permitted,
    /// The processor does not have them, or the system does not keep them.
    Missing,
    /// The system was asked and said no.
    Refused,
}

/// Asks at the first call, and remembers.
pub(super) fn tiles() -> Tiles {
    static TILES: OnceLock<Tiles> = OnceLock::new();
    *TILES.get_or_init(|| match (has_tiles(), has_tiles() && request_permission()) {
        (false, _) => Tiles::Missing,
        (true, true) => Tiles::Permitted,
        (true, false) => Tiles::Refused,
    })
}

/// AMX-TILE and AMX-INT8 (bits 24 and 25 of leaf 7), and the two parts of the state among what the system keeps.
fn has_tiles() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const TILE_AND_INT8: u32 = 0b11 << 24;
    const TILE_STATE: u64 = 0b11 << 17;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    #[target_feature(enable = "xsave")]
    fn kept_state() -> u64 {
        // SAFETY: register 0 exists wherever the instruction does.
        unsafe { _xgetbv(0) }
    }
    // SAFETY: the system uses `xsave` and lets processes ask what it keeps: OSXSAVE.
    let kept = unsafe { kept_state() };
    __cpuid_count(7, 0).edx & TILE_AND_INT8 == TILE_AND_INT8 && kept & TILE_STATE == TILE_STATE
}

/// `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`, in Linux since 5.16. It is refused by older ones, by some
/// sandboxes, and where the signal stack of a thread is too small for the registers.
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: isize = 0x1023;
    const XFEATURE_XTILEDATA: isize = 18;
    let result: isize;
    // SAFETY: a system call that takes two numbers and touches no memory; it changes rax, rcx and r11.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    result == 0
}

/// Other systems have no such call that is known here.
#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_found_where_the_system_lists_them() {
        let listed = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let has = |flag| listed.split_whitespace().any(|word| word == flag);
        assert_eq!(tiles() != Tiles::Missing, has("amx_tile") && has("amx_int8"));
    }

    #[test]
    fn a_processor_without_tiles_gets_no_permission() {
        assert!(has_tiles() || !request_permission());
    }
}
