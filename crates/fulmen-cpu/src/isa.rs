//! The SIMD instruction sets of this processor, detected once at run time.

use std::{fmt, sync::OnceLock};

/// A SIMD instruction set that kernels are written for, from the narrowest to the widest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// The baseline of the compilation target.
    Portable,
    /// 128-bit vectors of AArch64.
    Neon,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 (F, BW, DQ, VL) with the VNNI dot products.
    Avx512,
}

impl Isa {
    /// Every instruction set of this processor, narrowest first. Tests run on all of them.
    pub fn available() -> Vec<Isa> {
        #[cfg_attr(not(any(target_arch = "aarch64", target_arch = "x86_64")), expect(unused_mut))]
        let mut isas = vec![Isa::Portable];
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            isas.push(Isa::Neon);
        }
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx2") && has!("fma") && has!("f16c") {
                isas.push(Isa::Avx2);
                if has!("avx512f")
                    && has!("avx512bw")
                    && has!("avx512dq")
                    && has!("avx512vl")
                    && has!("avx512vnni")
                {
                    isas.push(Isa::Avx512);
                }
            }
        }
        isas
    }

    /// The widest set, or the one named by the environment variable `FULMEN_CPU_ISA` if the processor has it.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            let available = Isa::available();
            let wanted = std::env::var("FULMEN_CPU_ISA").ok();
            let named = available
                .iter()
                .find(|isa| wanted.as_deref().is_some_and(|w| w.eq_ignore_ascii_case(isa.name())));
            *named.or(available.last()).unwrap_or(&Isa::Portable)
        })
    }

    /// The name, as `FULMEN_CPU_ISA` takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
