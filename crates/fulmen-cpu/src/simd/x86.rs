//! AVX2 and AVX-512.

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// The token of AVX2 with FMA and F16C: eight lanes.
#[derive(Clone, Copy)]
pub struct Avx2(());

/// The token of AVX-512 (F, BW, DQ, VL): sixteen lanes.
#[derive(Clone, Copy)]
pub struct Avx512(());

impl Avx2 {
    /// The token.
    ///
    /// # Safety
    /// The processor must have AVX2, FMA and F16C.
    #[inline(always)]
    pub const unsafe fn new() -> Avx2 {
        Avx2(())
    }
}

impl Avx512 {
    /// The token.
    ///
    /// # Safety
    /// The processor must have what `Isa::Avx512` stands for.
    #[inline(always)]
    pub const unsafe fn new() -> Avx512 {
        Avx512(())
    }
}

/// Runs `kernel` compiled for AVX2.
///
/// # Safety
/// The processor must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: by the contract.
    kernel.run(unsafe { Avx2::new() })
}

/// Runs `kernel` compiled for AVX-512.
///
/// # Safety
/// The processor must have what `Isa::Avx512` stands for.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: by the contract.
    kernel.run(unsafe { Avx512::new() })
}

/// Intrinsics that touch no memory, which the token makes safe to call.
macro_rules! have {
    ($e:expr) => {{
        // SAFETY: the token is proof that the processor has the instructions.
        unsafe { $e }
    }};
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// All ones in the first `n` lanes.
#[inline(always)]
fn first_lanes(_: Avx2, n: usize) -> __m256i {
    have!(_mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)))
}

impl Simd for Avx2 {
    type V = __m256;
    type M = __m256;
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m256 {
        // SAFETY: by the contract.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m256) {
        // SAFETY: by the contract.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize, fill: f32) -> __m256 {
        let mask = first_lanes(self, n);
        // SAFETY: by the contract; masked lanes are not touched.
        unsafe {
            _mm256_blendv_ps(_mm256_set1_ps(fill), _mm256_maskload_ps(p, mask), _mm256_castsi256_ps(mask))
        }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, v: __m256, n: usize) {
        // SAFETY: by the contract; masked lanes are not touched.
        unsafe { _mm256_maskstore_ps(p, first_lanes(self, n), v) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m256 {
        // SAFETY: by the contract.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: __m256) {
        // SAFETY: by the contract.
        unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m256 {
        // SAFETY: by the contract.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> __m256 {
        // SAFETY: by the contract; only eight bytes are read.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        have!(_mm256_set1_ps(x))
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        have!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        have!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        have!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        have!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        have!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        have!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        have!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn neg(self, x: __m256) -> __m256 {
        have!(_mm256_xor_ps(x, _mm256_set1_ps(-0.0)))
    }
    #[inline(always)]
    fn abs(self, x: __m256) -> __m256 {
        have!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), x))
    }
    #[inline(always)]
    fn copysign(self, x: __m256, sign: __m256) -> __m256 {
        have!(_mm256_or_ps(
            _mm256_andnot_ps(_mm256_set1_ps(-0.0), x),
            _mm256_and_ps(_mm256_set1_ps(-0.0), sign)
        ))
    }
    #[inline(always)]
    fn lt(self, a: __m256, b: __m256) -> __m256 {
        have!(_mm256_cmp_ps::<_CMP_LT_OQ>(a, b))
    }
    #[inline(always)]
    fn eq(self, a: __m256, b: __m256) -> __m256 {
        have!(_mm256_cmp_ps::<_CMP_EQ_OQ>(a, b))
    }
    #[inline(always)]
    fn select(self, m: __m256, a: __m256, b: __m256) -> __m256 {
        have!(_mm256_blendv_ps(b, a, m))
    }
    #[inline(always)]
    fn bits(self, m: __m256) -> u32 {
        have!(_mm256_movemask_ps(m)) as u32
    }
    #[inline(always)]
    fn round(self, x: __m256) -> __m256 {
        have!(_mm256_round_ps::<NEAREST>(x))
    }
    #[inline(always)]
    fn ldexp(self, x: __m256, n: __m256) -> __m256 {
        // In two steps, because 2^n itself may be out of range; the first product is exact.
        have!({
            let n = _mm256_cvtps_epi32(n);
            let half = _mm256_srai_epi32::<1>(n);
            let rest = _mm256_sub_epi32(n, half);
            let bias = _mm256_set1_epi32(127);
            let first = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias)));
            let second = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(rest, bias)));
            _mm256_mul_ps(_mm256_mul_ps(x, first), second)
        })
    }
    #[inline(always)]
    fn swap_pairs(self, v: __m256) -> __m256 {
        have!(_mm256_permute_ps::<0b10_11_00_01>(v))
    }
    #[inline(always)]
    fn reduce_sum(self, v: __m256) -> f32 {
        have!({
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        })
    }
    #[inline(always)]
    fn reduce_sum4(self, v: [__m256; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        have!({
            let pairs = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
            let sum = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps::<1>(pairs));
            _mm_storeu_ps(sums.as_mut_ptr(), sum);
        });
        sums
    }
    #[inline(always)]
    fn reduce_max(self, v: __m256) -> f32 {
        have!({
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        })
    }
}

/// The mask of the first `n` lanes.
#[inline(always)]
fn first_bits(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

impl Simd for Avx512 {
    type V = __m512;
    type M = __mmask16;
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        // SAFETY: by the contract.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        // SAFETY: by the contract.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize, fill: f32) -> __m512 {
        // SAFETY: by the contract; masked lanes are not touched.
        unsafe { _mm512_mask_loadu_ps(_mm512_set1_ps(fill), first_bits(n), p) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, v: __m512, n: usize) {
        // SAFETY: by the contract; masked lanes are not touched.
        unsafe { _mm512_mask_storeu_ps(p, first_bits(n), v) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m512 {
        // SAFETY: by the contract.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: __m512) {
        // SAFETY: by the contract.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<NEAREST>(v)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m512 {
        // SAFETY: by the contract.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> __m512 {
        // SAFETY: by the contract.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        have!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        have!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn neg(self, x: __m512) -> __m512 {
        have!(_mm512_xor_ps(x, _mm512_set1_ps(-0.0)))
    }
    #[inline(always)]
    fn abs(self, x: __m512) -> __m512 {
        have!(_mm512_andnot_ps(_mm512_set1_ps(-0.0), x))
    }
    #[inline(always)]
    fn copysign(self, x: __m512, sign: __m512) -> __m512 {
        have!(_mm512_or_ps(
            _mm512_andnot_ps(_mm512_set1_ps(-0.0), x),
            _mm512_and_ps(_mm512_set1_ps(-0.0), sign)
        ))
    }
    #[inline(always)]
    fn lt(self, a: __m512, b: __m512) -> __mmask16 {
        have!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b))
    }
    #[inline(always)]
    fn eq(self, a: __m512, b: __m512) -> __mmask16 {
        have!(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b))
    }
    #[inline(always)]
    fn select(self, m: __mmask16, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_mask_blend_ps(m, b, a))
    }
    #[inline(always)]
    fn bits(self, m: __mmask16) -> u32 {
        u32::from(m)
    }
    #[inline(always)]
    fn round(self, x: __m512) -> __m512 {
        have!(_mm512_roundscale_ps::<NEAREST>(x))
    }
    #[inline(always)]
    fn ldexp(self, x: __m512, n: __m512) -> __m512 {
        have!(_mm512_scalef_ps(x, n))
    }
    #[inline(always)]
    fn swap_pairs(self, v: __m512) -> __m512 {
        have!(_mm512_permute_ps::<0b10_11_00_01>(v))
    }
    #[inline(always)]
    fn reduce_sum(self, v: __m512) -> f32 {
        have!(_mm512_reduce_add_ps(v))
    }
    #[inline(always)]
    fn reduce_sum4(self, v: [__m512; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        have!({
            // Pairs, then fours, within each quarter; then the quarters.
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
            let low = _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd);
            let high = _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd);
            let quarters = _mm512_add_ps(low, high);
            let pairs =
                _mm256_add_ps(_mm512_castps512_ps256(quarters), _mm512_extractf32x8_ps::<1>(quarters));
            let sum = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps::<1>(pairs));
            _mm_storeu_ps(sums.as_mut_ptr(), sum);
        });
        sums
    }
    #[inline(always)]
    fn reduce_max(self, v: __m512) -> f32 {
        have!(_mm512_reduce_max_ps(v))
    }
}
