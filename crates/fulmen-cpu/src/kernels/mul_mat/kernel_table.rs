//! The matmul kernels of each instruction set, as tables of function pointers.
//!
//! `instruction_set!` instantiates the generic kernels inside functions with the `target_feature`s of the
//! instruction set, and lists their register tiles (MR rows by NV vectors).

use super::{
    Isa,
    activations::{Q8Block, quantize_row},
    epilogue::{gelu_mul, silu_mul},
    gemv::{ActivationRows, BF16, DotFn, DotTile, F16, F32, WeightRows, dot_blocks, dot_f32},
    packed_gemm::{
        F32KernelFn, PackF32Fn, PackQ8Fn, Q8KernelFn, Q8Tile, f32_kernel, pack_f32, pack_q8, pack_x,
        q8_kernel,
    },
    simd::{Portable, Simd},
    unpack as f,
};
use fulmen_core::DType;

/// Quantizes one row: values, quants, scales, sums, scaled sums.
type QuantizeFn = unsafe fn(&[f32], &mut [i8], &mut [f32], &mut [i16], &mut [f32]);

/// The kernels of one type of weights.
#[derive(Clone, Copy)]
pub(super) enum Kernels {
    F32 { dot: DotFn, pack: PackF32Fn },
    Q8 { q8_block: Q8Block, dot: DotFn, pack: PackQ8Fn, kernel: Q8KernelFn },
}

/// The register tiles and kernels of an instruction set. All kernels are unsafe to call on a processor
/// without it.
pub(super) struct KernelTable {
    pub(super) lanes: usize,
    pub(super) f32_mr: usize,
    pub(super) f32_nv: usize,
    pub(super) q8_mr: usize,
    pub(super) q8_nv: usize,
    pub(super) x_flip: u8,
    /// Indexed by [`Q8Block`].
    pub(super) quantize: [QuantizeFn; 2],
    pub(super) pack_x: unsafe fn(x: *const f32, stride: usize, rows: usize, k: usize, out: *mut f32),
    pub(super) f32_kernel: F32KernelFn,
    pub(super) silu_mul: unsafe fn(gate: &mut [f32], up: &[f32]),
    /// `gate = gelu(gate) * up`.
    pub(super) gelu_mul: unsafe fn(gate: &mut [f32], up: &[f32]),
    /// The kernels for weights of a type and row length; `None` if the type has no matmul.
    pub(super) kernels: fn(DType, usize) -> Option<Kernels>,
}

/// The module of one instruction set.
macro_rules! instruction_set {
    ($module:ident, $simd:ty, rows $f32_mr:literal $q8_mr:literal, vectors $f32_nv:literal
     $q8_nv:literal, $(#[$feature:meta])* specialized $specialized:expr) => {
        mod $module {
            use super::*;

            $(#[$feature])*
            unsafe fn quantize<const B: usize>(
                x: &[f32],
                quants: &mut [i8],
                d: &mut [f32],
                sums: &mut [i16],
                scaled: &mut [f32],
            ) {
                quantize_row::<B>(x, quants, d, sums, scaled);
            }

            $(#[$feature])*
            unsafe fn dot_f32_entry<T: super::super::gemv::Float>(
                w: WeightRows,
                x: &ActivationRows<'_>,
                first: usize,
                count: usize,
                out: &mut DotTile,
            ) {
                // SAFETY: the caller keeps the contract of the kernel.
                unsafe { dot_f32::<$simd, T>(w, x, first, count, out) }
            }

            $(#[$feature])*
            unsafe fn dot_blocks_entry<F: f::Format>(
                w: WeightRows,
                x: &ActivationRows<'_>,
                first: usize,
                count: usize,
                out: &mut DotTile,
            ) {
                // SAFETY: the caller keeps the contract of the kernel.
                unsafe { dot_blocks::<$simd, F>(w, x, first, count, out) }
            }

            $(#[$feature])*
            unsafe fn pack_f32_entry<T: super::super::gemv::Float>(
                w: *const u8,
                row_bytes: usize,
                rows: usize,
                k: usize,
                out: *mut f32,
            ) {
                // SAFETY: the caller keeps the contract of the kernel.
                unsafe { pack_f32::<$simd, T>(w, row_bytes, rows, k, out) }
            }

            $(#[$feature])*
            unsafe fn pack_q8_entry<F: f::Format>(
                w: *const u8,
                row_bytes: usize,
                rows: usize,
                k: usize,
                out: *mut u8,
            ) {
                // SAFETY: the caller keeps the contract of the kernel.
                unsafe { pack_q8::<$simd, F>(w, row_bytes, rows, k, out) }
            }

            $(#[$feature])*
            unsafe fn pack_x_entry(x: *const f32, stride: usize, rows: usize, k: usize, out: *mut f32) {
                // SAFETY: the caller keeps the contract of the kernel.
                unsafe { pack_x::<$simd>(x, stride, rows, k, out) }
            }

            $(#[$feature])*
            unsafe fn f32_kernel_entry(
                panel: *const f32,
                panel_stride: usize,
                tile: *const f32,
                k: usize,
                c: *mut f32,
                ldc: usize,
                add: bool,
            ) {
                // SAFETY: the caller keeps the contract of the kernel.
                unsafe {
                    f32_kernel::<$simd, $f32_mr, $f32_nv>(panel, panel_stride, tile, k, c, ldc, add)
                }
            }

            $(#[$feature])*
            unsafe fn q8_kernel_entry<F: f::Format>(
                panel: *const u8,
                tile: Q8Tile,
                k: usize,
                from: usize,
                to: usize,
                c: *mut f32,
                ldc: usize,
            ) {
                // SAFETY: the caller keeps the contract of the kernel.
                unsafe { q8_kernel::<$simd, F, $q8_mr, $q8_nv>(panel, tile, k, from, to, c, ldc) }
            }

            $(#[$feature])*
            unsafe fn silu_mul_entry(gate: &mut [f32], up: &[f32]) {
                silu_mul(gate, up);
            }

            $(#[$feature])*
            unsafe fn gelu_mul_entry(gate: &mut [f32], up: &[f32]) {
                gelu_mul(gate, up);
            }

            const fn float_kernels<T: super::super::gemv::Float>() -> Option<Kernels> {
                Some(Kernels::F32 { dot: dot_f32_entry::<T>, pack: pack_f32_entry::<T> })
            }

            fn block_kernels<F: f::Format>(dtype: DType, k: usize) -> Option<Kernels> {
                let specialized: fn(DType) -> Option<(DotFn, usize)> = $specialized;
                let dot = specialized(dtype).filter(|&(_, multiple)| k.is_multiple_of(multiple));
                Some(Kernels::Q8 {
                    q8_block: if F::BLOCK == 32 { Q8Block::Block32 } else { Q8Block::Block256 },
                    dot: dot.map_or(dot_blocks_entry::<F> as DotFn, |(dot, _)| dot),
                    pack: pack_q8_entry::<F>,
                    kernel: q8_kernel_entry::<F>,
                })
            }

            fn kernels(dtype: DType, k: usize) -> Option<Kernels> {
                match dtype {
                    DType::F32 => float_kernels::<F32>(),
                    DType::F16 => float_kernels::<F16>(),
                    DType::BF16 => float_kernels::<BF16>(),
                    DType::Q4_0 => block_kernels::<f::Q4_0>(dtype, k),
                    DType::Q4_1 => block_kernels::<f::Q4_1>(dtype, k),
                    DType::Q5_0 => block_kernels::<f::Q5_0>(dtype, k),
                    DType::Q5_1 => block_kernels::<f::Q5_1>(dtype, k),
                    DType::Q8_0 => block_kernels::<f::Q8_0>(dtype, k),
                    DType::Q2_K => block_kernels::<f::Q2K>(dtype, k),
                    DType::Q3_K => block_kernels::<f::Q3K>(dtype, k),
                    DType::Q4_K => block_kernels::<f::Q4K>(dtype, k),
                    DType::Q5_K => block_kernels::<f::Q5K>(dtype, k),
                    DType::Q6_K => block_kernels::<f::Q6K>(dtype, k),
                    DType::Q8_K => block_kernels::<f::Q8K>(dtype, k),
                    DType::MXFP4 => block_kernels::<f::MXFP4>(dtype, k),
                    DType::IQ4_NL => block_kernels::<f::IQ4_NL>(dtype, k),
                    DType::IQ4_XS => block_kernels::<f::IQ4_XS>(dtype, k),
                    DType::IQ2_XXS => block_kernels::<f::IQ2_XXS>(dtype, k),
                    DType::IQ2_XS => block_kernels::<f::IQ2_XS>(dtype, k),
                    DType::IQ2_S => block_kernels::<f::IQ2_S>(dtype, k),
                    DType::IQ3_XXS => block_kernels::<f::IQ3_XXS>(dtype, k),
                    DType::IQ3_S => block_kernels::<f::IQ3_S>(dtype, k),
                    DType::U32 => None,
                }
            }

            const _: () = {
                assert!(<$simd>::F32_MR == $f32_mr && <$simd>::F32_NV == $f32_nv);
                assert!(<$simd>::Q8_MR == $q8_mr && <$simd>::Q8_NV == $q8_nv);
            };

            pub(super) static TABLE: KernelTable = KernelTable {
                lanes: <$simd>::LANES,
                f32_mr: $f32_mr,
                f32_nv: $f32_nv,
                q8_mr: $q8_mr,
                q8_nv: $q8_nv,
                x_flip: <$simd>::X_FLIP,
                quantize: [quantize::<32>, quantize::<256>],
                pack_x: pack_x_entry,
                f32_kernel: f32_kernel_entry,
                silu_mul: silu_mul_entry,
                gelu_mul: gelu_mul_entry,
                kernels,
            };
        }
    };
}

instruction_set!(portable, Portable, rows 4 4, vectors 1 1, specialized |_| None);
#[cfg(target_arch = "aarch64")]
instruction_set!(neon, super::super::simd::Neon, rows 8 4, vectors 3 2,
    #[target_feature(enable = "neon")] specialized |_| None);
#[cfg(target_arch = "x86_64")]
instruction_set!(avx2, super::super::simd::Avx2, rows 6 4, vectors 2 1,
    #[target_feature(enable = "avx2,fma,f16c")] specialized super::super::gemv_avx2::specialized);
#[cfg(target_arch = "x86_64")]
instruction_set!(avx512, super::super::simd::Avx512, rows 12 6, vectors 2 2,
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    specialized super::super::gemv_avx512::specialized);

/// The kernels for `isa`, or the portable ones if this processor does not have it.
pub(super) fn kernel_table(isa: Isa) -> &'static KernelTable {
    match isa {
        #[cfg(target_arch = "aarch64")]
        Isa::Neon if has(isa) => &neon::TABLE,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if has(isa) => &avx2::TABLE,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if has(isa) => &avx512::TABLE,
        _ => &portable::TABLE,
    }
}

/// Whether the processor has the instruction set. An [`Isa`] can be constructed safely, so every use must
/// check.
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
fn has(isa: Isa) -> bool {
    static AVAILABLE: std::sync::OnceLock<Vec<Isa>> = std::sync::OnceLock::new();
    AVAILABLE.get_or_init(Isa::available).contains(&isa)
}
