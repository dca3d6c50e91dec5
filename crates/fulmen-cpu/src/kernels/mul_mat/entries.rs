//! The kernels of each instruction set, behind function pointers.

use super::{
    Isa,
    activations::{Family, quantize_row},
    dots::{BF16, DotFn, Dots, F16, F32, Rows, WeightRows, dot_blocks, dot_float},
    epilogue::silu_mul,
    formats as f,
    panels::{
        FloatKernelFn, IntKernelFn, IntTile, PackFloatFn, PackIntFn, float_kernel, int_kernel, pack_float,
        pack_int, pack_x,
    },
    simd::{Portable, Simd},
};
use fulmen_core::DType;

/// Quantizes one row: values, quants, scales, sums, scaled sums.
type QuantizeFn = unsafe fn(&[f32], &mut [i8], &mut [f32], &mut [i16], &mut [f32]);

/// The kernels of one type of weights.
#[derive(Clone, Copy)]
pub(super) enum Kernels {
    Float { dot: DotFn, pack: PackFloatFn },
    Int { family: Family, dot: DotFn, pack: PackIntFn, kernel: IntKernelFn },
}

/// What an instruction set has: the shapes of its tiles, and its kernels. All of them are unsafe to call
/// where the processor does not have the instructions.
pub(super) struct Entries {
    pub(super) lanes: usize,
    pub(super) float_rows: usize,
    pub(super) float_vectors: usize,
    pub(super) int_rows: usize,
    pub(super) int_vectors: usize,
    pub(super) x_flip: u8,
    /// By [`Family`].
    pub(super) quantize: [QuantizeFn; 2],
    pub(super) pack_x: unsafe fn(x: *const f32, stride: usize, rows: usize, k: usize, out: *mut f32),
    pub(super) float_kernel: FloatKernelFn,
    pub(super) silu_mul: unsafe fn(gate: &mut [f32], up: &[f32]),
    /// The kernels for rows of a type and a length, if there are products with the type.
    pub(super) kernels: fn(DType, usize) -> Option<Kernels>,
}

/// The module of one instruction set: the generic kernels within functions that enable its features.
macro_rules! instruction_set {
    ($module:ident, $simd:ty, rows $float_rows:literal $int_rows:literal, vectors $float_vectors:literal
     $int_vectors:literal, $(#[$feature:meta])* specialized $specialized:expr) => {
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
            unsafe fn dot_of_floats<T: super::super::dots::Float>(
                w: WeightRows,
                x: &Rows<'_>,
                first: usize,
                count: usize,
                out: &mut Dots,
            ) {
                // SAFETY: the caller keeps the contract of the kernel.
                unsafe { dot_float::<$simd, T>(w, x, first, count, out) }
            }

            $(#[$feature])*
            unsafe fn dot_of_blocks<F: f::Format>(
                w: WeightRows,
                x: &Rows<'_>,
                first: usize,
                count: usize,
                out: &mut Dots,
            ) {
                // SAFETY: the caller keeps the contract of the kernel.
                unsafe { dot_blocks::<$simd, F>(w, x, first, count, out) }
            }

            $(#[$feature])*
            unsafe fn pack_floats<T: super::super::dots::Float>(
                w: *const u8,
                row_bytes: usize,
                rows: usize,
                k: usize,
                out: *mut f32,
            ) {
                // SAFETY: the caller keeps the contract of the kernel.
                unsafe { pack_float::<$simd, T>(w, row_bytes, rows, k, out) }
            }

            $(#[$feature])*
            unsafe fn pack_blocks<F: f::Format>(
                w: *const u8,
                row_bytes: usize,
                rows: usize,
                k: usize,
                out: *mut u8,
            ) {
                // SAFETY: the caller keeps the contract of the kernel.
                unsafe { pack_int::<$simd, F>(w, row_bytes, rows, k, out) }
            }

            $(#[$feature])*
            unsafe fn pack_activations(x: *const f32, stride: usize, rows: usize, k: usize, out: *mut f32) {
                // SAFETY: the caller keeps the contract of the kernel.
                unsafe { pack_x::<$simd>(x, stride, rows, k, out) }
            }

            $(#[$feature])*
            unsafe fn kernel_of_floats(
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
                    float_kernel::<$simd, $float_rows, $float_vectors>(panel, panel_stride, tile, k, c, ldc, add)
                }
            }

            $(#[$feature])*
            unsafe fn kernel_of_blocks<F: f::Format>(
                panel: *const u8,
                tile: IntTile,
                k: usize,
                from: usize,
                to: usize,
                c: *mut f32,
                ldc: usize,
            ) {
                // SAFETY: the caller keeps the contract of the kernel.
                unsafe { int_kernel::<$simd, F, $int_rows, $int_vectors>(panel, tile, k, from, to, c, ldc) }
            }

            $(#[$feature])*
            unsafe fn silu_times(gate: &mut [f32], up: &[f32]) {
                silu_mul(gate, up);
            }

            const fn floats<T: super::super::dots::Float>() -> Option<Kernels> {
                Some(Kernels::Float { dot: dot_of_floats::<T>, pack: pack_floats::<T> })
            }

            fn blocks<F: f::Format>(dtype: DType, k: usize) -> Option<Kernels> {
                let specialized: fn(DType) -> Option<(DotFn, usize)> = $specialized;
                let dot = specialized(dtype).filter(|&(_, multiple)| k.is_multiple_of(multiple));
                Some(Kernels::Int {
                    family: if F::BLOCK == 32 { Family::Block32 } else { Family::Block256 },
                    dot: dot.map_or(dot_of_blocks::<F> as DotFn, |(dot, _)| dot),
                    pack: pack_blocks::<F>,
                    kernel: kernel_of_blocks::<F>,
                })
            }

            fn kernels(dtype: DType, k: usize) -> Option<Kernels> {
                match dtype {
                    DType::F32 => floats::<F32>(),
                    DType::F16 => floats::<F16>(),
                    DType::BF16 => floats::<BF16>(),
                    DType::Q4_0 => blocks::<f::Q4_0>(dtype, k),
                    DType::Q4_1 => blocks::<f::Q4_1>(dtype, k),
                    DType::Q5_0 => blocks::<f::Q5_0>(dtype, k),
                    DType::Q5_1 => blocks::<f::Q5_1>(dtype, k),
                    DType::Q8_0 => blocks::<f::Q8_0>(dtype, k),
                    DType::Q2_K => blocks::<f::Q2K>(dtype, k),
                    DType::Q3_K => blocks::<f::Q3K>(dtype, k),
                    DType::Q4_K => blocks::<f::Q4K>(dtype, k),
                    DType::Q5_K => blocks::<f::Q5K>(dtype, k),
                    DType::Q6_K => blocks::<f::Q6K>(dtype, k),
                    DType::Q8_K => blocks::<f::Q8K>(dtype, k),
                    DType::U32 => None,
                }
            }

            const _: () = {
                assert!(<$simd>::FLOAT_ROWS == $float_rows && <$simd>::FLOAT_VECTORS == $float_vectors);
                assert!(<$simd>::INT_ROWS == $int_rows && <$simd>::INT_VECTORS == $int_vectors);
            };

            pub(super) static ENTRIES: Entries = Entries {
                lanes: <$simd>::LANES,
                float_rows: $float_rows,
                float_vectors: $float_vectors,
                int_rows: $int_rows,
                int_vectors: $int_vectors,
                x_flip: <$simd>::X_FLIP,
                quantize: [quantize::<32>, quantize::<256>],
                pack_x: pack_activations,
                float_kernel: kernel_of_floats,
                silu_mul: silu_times,
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
    #[target_feature(enable = "avx2,fma,f16c")] specialized super::super::dots_avx2::specialized);
#[cfg(target_arch = "x86_64")]
instruction_set!(avx512, super::super::simd::Avx512, rows 12 6, vectors 2 2,
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    specialized super::super::dots_avx512::specialized);

/// The kernels for `isa`, or the portable ones where this processor does not have it.
pub(super) fn entries(isa: Isa) -> &'static Entries {
    match isa {
        #[cfg(target_arch = "aarch64")]
        Isa::Neon if has(isa) => &neon::ENTRIES,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if has(isa) => &avx2::ENTRIES,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if has(isa) => &avx512::ENTRIES,
        _ => &portable::ENTRIES,
    }
}

/// Whether the processor has the instruction set. Naming one is safe, so this must be asked each time.
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
fn has(isa: Isa) -> bool {
    static AVAILABLE: std::sync::OnceLock<Vec<Isa>> = std::sync::OnceLock::new();
    AVAILABLE.get_or_init(Isa::available).contains(&isa)
}
