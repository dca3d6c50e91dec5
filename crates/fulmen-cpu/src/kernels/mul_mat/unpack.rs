//! Unpacking of every block format to one common layout.
//!
//! The elements of every format are `s * q + m`, with signed 8-bit quants `q` and one `s` and `m` per 16 (or
//! more) elements. The loops are simple so that the compiler vectorizes them for the instruction set of the
//! function they are inlined into.

use super::simd::f16_to_f32;
use fulmen_core::quant::{BlockIQ2_S, BlockIQ2_XS, BlockIQ2_XXS, BlockIQ3_S, BlockIQ3_XXS, IQ4_VALUES};

/// Up to 256 unpacked elements of one row. Elements beyond those unpacked are left unchanged.
#[repr(C, align(64))]
pub(super) struct UnpackedBlocks {
    pub(super) quants: [i8; 256],
    /// Scale of each 16 elements.
    pub(super) s: [f32; 16],
    /// Minimum of each 16 elements; written by formats with `MINS` only.
    pub(super) m: [f32; 16],
}

impl UnpackedBlocks {
    pub(super) const ZERO: UnpackedBlocks = UnpackedBlocks { quants: [0; 256], s: [0.0; 16], m: [0.0; 16] };
}

/// One block format.
pub(super) trait Format: 'static {
    /// Elements per block: 32, or 256 for the K-quants.
    const BLOCK: usize;
    /// Bytes per block.
    const BYTES: usize;
    /// Elements that share a scale: 16 or 32.
    const SUB: usize;
    /// Whether there are minima.
    const MINS: bool;

    /// Unpacks `blocks` blocks, 256 elements at most.
    ///
    /// # Safety
    ///
    /// `src` must be readable for `blocks * BYTES` bytes.
    unsafe fn unpack(src: *const u8, blocks: usize, out: &mut UnpackedBlocks);
}

/// `N` bytes at an offset, without alignment.
///
/// # Safety
///
/// `src + at` must be readable for `N` bytes.
#[inline(always)]
unsafe fn bytes<const N: usize>(src: *const u8, at: usize) -> [u8; N] {
    // SAFETY: by the contract.
    unsafe { src.add(at).cast::<[u8; N]>().read_unaligned() }
}

/// # Safety
///
/// As [`bytes`].
#[inline(always)]
unsafe fn f16_at(src: *const u8, at: usize) -> f32 {
    // SAFETY: by the contract.
    f16_to_f32(u16::from_le_bytes(unsafe { bytes(src, at) }))
}

/// The f16 fields at the offset `at` of up to eight blocks of 32, as f32, each for two groups of 16. Those of
/// absent blocks are 0.
///
/// # Safety
///
/// `src` must be readable for `blocks` blocks of `size` bytes.
#[inline(always)]
unsafe fn f16_of_blocks(src: *const u8, size: usize, at: usize, blocks: usize, out: &mut [f32; 16]) {
    let mut words = [0u64; 2];
    for b in 0..blocks {
        // SAFETY: by the contract. (Assembled in registers: an array of f16 would be written element by
        // element and read as a whole, which defeats store forwarding.)
        let half = u16::from_le_bytes(unsafe { bytes(src, b * size + at) });
        words[b / 4] |= u64::from(half) << (16 * (b % 4));
    }
    let values = bytemuck::cast::<[u64; 2], [u16; 8]>(words.map(u64::to_le)).map(f16_to_f32);
    for i in 0..16 {
        out[i] = values[i / 2];
    }
}

/// The formats of 32 elements: the offsets of the fields in the block, and the zero point of the quants.
macro_rules! block32 {
    ($name:ident, bytes $bytes:literal, quants at $quants:literal, high bits at $high:expr, minimum $min:expr,
     zero point $zero_point:literal) => {
        pub(super) struct $name;

        impl Format for $name {
            const BLOCK: usize = 32;
            const BYTES: usize = $bytes;
            const SUB: usize = 32;
            const MINS: bool = $min;

            #[inline(always)]
            unsafe fn unpack(src: *const u8, blocks: usize, out: &mut UnpackedBlocks) {
                // SAFETY: the contract is the same. A constant number of blocks lets the compiler unroll.
                unsafe {
                    if blocks == 8 {
                        $name::unpack_all(src, 8, out)
                    } else {
                        $name::unpack_all(src, blocks, out)
                    }
                }
            }
        }

        impl $name {
            /// # Safety
            ///
            /// As [`Format::unpack`].
            #[inline(always)]
            unsafe fn unpack_all(src: *const u8, blocks: usize, out: &mut UnpackedBlocks) {
                const HIGH: Option<usize> = $high;
                for (b, to) in out.quants.as_chunks_mut::<32>().0.iter_mut().enumerate().take(blocks) {
                    // SAFETY: every offset is within the block, and the caller gives `blocks` of them.
                    let q = unsafe { bytes::<16>(src, b * $bytes + $quants) };
                    let mut quants = [0; 32];
                    for i in 0..16 {
                        quants[i] = q[i] & 15;
                        quants[i + 16] = q[i] >> 4;
                    }
                    if let Some(high) = HIGH {
                        // SAFETY: as above.
                        let bits = spread_bits(unsafe { bytes(src, b * $bytes + high) });
                        for i in 0..32 {
                            quants[i] |= bits[i];
                        }
                    }
                    for i in 0..32 {
                        to[i] = quants[i] as i8 - $zero_point;
                    }
                }
                // SAFETY: by the contract.
                unsafe {
                    f16_of_blocks(src, $bytes, 0, blocks, &mut out.s);
                    if $min {
                        f16_of_blocks(src, $bytes, 2, blocks, &mut out.m);
                    }
                }
            }
        }
    };
}

/// Each bit as a byte, 0 or 16.
#[inline(always)]
fn spread_bits(bits: [u8; 4]) -> [u8; 32] {
    let mut out = [0; 32];
    for i in 0..32 {
        out[i] = if bits[i / 8] & (1 << (i % 8)) == 0 { 0 } else { 16 };
    }
    out
}

block32!(Q4_0, bytes 18, quants at 2, high bits at None, minimum false, zero point 8);
block32!(Q4_1, bytes 20, quants at 4, high bits at None, minimum true, zero point 0);
block32!(Q5_0, bytes 22, quants at 6, high bits at Some(2), minimum false, zero point 16);
block32!(Q5_1, bytes 24, quants at 8, high bits at Some(4), minimum true, zero point 0);

/// E2M1 times 2, by arithmetic on bytes: loads from a table would not be vectorized. 0 to 3 are themselves, 4
/// to 7 are 4, 6, 8 and 12; the fourth bit is the sign.
#[inline(always)]
fn e2m1_doubled(index: u8) -> i8 {
    let low = index & 3;
    let upper = 4 + low + if low == 3 { 2 } else { 0 };
    let magnitude = (low + if index & 4 == 0 { 0 } else { upper }) as i8;
    if index & 8 == 0 { magnitude } else { -magnitude }
}

/// The value of IQ4_NL's table: its steps up to the index, which vectorize as comparisons.
#[inline(always)]
fn iq4_value(index: u8) -> i8 {
    let mut value = IQ4_VALUES[0];
    for at in 1..16 {
        let step = IQ4_VALUES[at].wrapping_sub(IQ4_VALUES[at - 1]);
        value = value.wrapping_add(if index >= at as u8 { step } else { 0 });
    }
    value
}

/// Low nibbles, then high nibbles of 16 bytes, each through `value`.
#[inline(always)]
fn look_up(q: [u8; 16], value: impl Fn(u8) -> i8, to: &mut [i8; 32]) {
    for i in 0..16 {
        to[i] = value(q[i] & 15);
    }
    for i in 0..16 {
        to[i + 16] = value(q[i] >> 4);
    }
}

pub(super) struct MXFP4;

impl Format for MXFP4 {
    const BLOCK: usize = 32;
    const BYTES: usize = 17;
    const SUB: usize = 32;
    const MINS: bool = false;

    #[inline(always)]
    unsafe fn unpack(src: *const u8, blocks: usize, out: &mut UnpackedBlocks) {
        let groups = out.quants.as_chunks_mut::<32>().0.iter_mut().zip(out.s.as_chunks_mut::<2>().0);
        for (b, (to, s)) in groups.enumerate().take(blocks) {
            // SAFETY: every offset is within the block, and the caller gives `blocks` of them.
            let ([e], q) = unsafe { (bytes::<1>(src, 17 * b), bytes::<16>(src, 17 * b + 1)) };
            look_up(q, e2m1_doubled, to);
            *s = [e8m0_halved(e); 2];
        }
    }
}

/// `2^(e - 128)`, the scale of E8M0 halved.
#[inline(always)]
pub(super) fn e8m0_halved(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 })
}

#[expect(non_camel_case_types, reason = "GGUF's name")]
pub(super) struct IQ4_NL;

impl Format for IQ4_NL {
    const BLOCK: usize = 32;
    const BYTES: usize = 18;
    const SUB: usize = 32;
    const MINS: bool = false;

    #[inline(always)]
    unsafe fn unpack(src: *const u8, blocks: usize, out: &mut UnpackedBlocks) {
        for (b, to) in out.quants.as_chunks_mut::<32>().0.iter_mut().enumerate().take(blocks) {
            // SAFETY: every offset is within the block, and the caller gives `blocks` of them.
            look_up(unsafe { bytes(src, 18 * b + 2) }, iq4_value, to);
        }
        // SAFETY: by the contract.
        unsafe { f16_of_blocks(src, 18, 0, blocks, &mut out.s) };
    }
}

#[expect(non_camel_case_types, reason = "GGUF's name")]
pub(super) struct IQ4_XS;

impl Format for IQ4_XS {
    const BLOCK: usize = 256;
    const BYTES: usize = 136;
    const SUB: usize = 32;
    const MINS: bool = false;

    #[inline(always)]
    unsafe fn unpack(src: *const u8, _blocks: usize, out: &mut UnpackedBlocks) {
        // SAFETY: every offset is within the block.
        let (d, high, low) = unsafe { (f16_at(src, 0), bytes(src, 2), bytes(src, 4)) };
        let scales = iq4_xs_scales(high, low);
        for i in 0..16 {
            out.s[i] = d * f32::from(scales[i / 2]);
        }
        for (j, to) in out.quants.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            // SAFETY: as above.
            look_up(unsafe { bytes(src, 8 + 16 * j) }, iq4_value, to);
        }
    }
}

/// The eight scales of `IQ4_XS`, from -32 to 31.
#[inline(always)]
fn iq4_xs_scales(high: [u8; 2], low: [u8; 4]) -> [i8; 8] {
    let mut scales = [0; 8];
    for j in 0..8 {
        let stored = (low[j / 2] >> (j % 2 * 4) & 15) | (high[j / 4] >> (j % 4 * 2) & 3) << 4;
        scales[j] = stored as i8 - 32;
    }
    scales
}

/// The formats whose elements are entries of a grid, which are loaded from a table, with signs.
macro_rules! grid {
    ($name:ident, $block:ident, groups of $group:literal) => {
        #[expect(non_camel_case_types, reason = "GGUF's name")]
        pub(super) struct $name;

        impl Format for $name {
            const BLOCK: usize = 256;
            const BYTES: usize = size_of::<$block>();
            const SUB: usize = $group;
            const MINS: bool = false;

            #[inline(always)]
            unsafe fn unpack(src: *const u8, _blocks: usize, out: &mut UnpackedBlocks) {
                // SAFETY: a block is plain bytes, and the caller gives one.
                let (d, block) = unsafe { (f16_at(src, 0), src.cast::<$block>().read_unaligned()) };
                for (i, s) in out.s.iter_mut().enumerate() {
                    *s = d * block.factor(16 * i / $group);
                }
                out.quants = block.quants();
            }
        }
    };
}

grid!(IQ2_XXS, BlockIQ2_XXS, groups of 32);
grid!(IQ2_XS, BlockIQ2_XS, groups of 16);
grid!(IQ2_S, BlockIQ2_S, groups of 16);
grid!(IQ3_XXS, BlockIQ3_XXS, groups of 32);
grid!(IQ3_S, BlockIQ3_S, groups of 32);

pub(super) struct Q8_0;

impl Format for Q8_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 34;
    const SUB: usize = 32;
    const MINS: bool = false;

    #[inline(always)]
    unsafe fn unpack(src: *const u8, blocks: usize, out: &mut UnpackedBlocks) {
        // SAFETY: the contract is the same. A constant number of blocks lets the compiler unroll.
        unsafe {
            if blocks == 8 { Q8_0::unpack_all(src, 8, out) } else { Q8_0::unpack_all(src, blocks, out) }
        }
    }
}

impl Q8_0 {
    /// # Safety
    ///
    /// As [`Format::unpack`].
    #[inline(always)]
    unsafe fn unpack_all(src: *const u8, blocks: usize, out: &mut UnpackedBlocks) {
        for (b, to) in out.quants.as_chunks_mut::<32>().0.iter_mut().enumerate().take(blocks) {
            // SAFETY: every offset is within the block, and the caller gives `blocks` of them.
            *to = unsafe { src.add(34 * b + 2).cast::<[i8; 32]>().read_unaligned() };
        }
        // SAFETY: by the contract.
        unsafe { f16_of_blocks(src, 34, 0, blocks, &mut out.s) };
    }
}

pub(super) struct Q2K;

impl Format for Q2K {
    const BLOCK: usize = 256;
    const BYTES: usize = 84;
    const SUB: usize = 16;
    const MINS: bool = true;

    #[inline(always)]
    unsafe fn unpack(src: *const u8, _blocks: usize, out: &mut UnpackedBlocks) {
        // SAFETY: every offset is within the block.
        let (scales, q, d, dmin) =
            unsafe { (bytes::<16>(src, 0), bytes::<64>(src, 16), f16_at(src, 80), f16_at(src, 82)) };
        for i in 0..16 {
            out.s[i] = d * f32::from(scales[i] & 15);
            out.m[i] = -dmin * f32::from(scales[i] >> 4);
        }
        for h in 0..2 {
            for j in 0..4 {
                for i in 0..32 {
                    out.quants[128 * h + 32 * j + i] = (q[32 * h + i] >> (2 * j) & 3) as i8;
                }
            }
        }
    }
}

pub(super) struct Q3K;

impl Format for Q3K {
    const BLOCK: usize = 256;
    const BYTES: usize = 110;
    const SUB: usize = 16;
    const MINS: bool = false;

    #[inline(always)]
    unsafe fn unpack(src: *const u8, _blocks: usize, out: &mut UnpackedBlocks) {
        // SAFETY: every offset is within the block.
        let (high, q, scales, d) = unsafe {
            let scales = (u64::from_le_bytes(bytes(src, 96)), u64::from(u32::from_le_bytes(bytes(src, 104))));
            (bytes::<32>(src, 0), bytes::<64>(src, 32), scales, f16_at(src, 108))
        };
        for i in 0..2 {
            let low = scales.0 >> (4 * i) & 0x0f0f_0f0f_0f0f_0f0f;
            let up = scales.1 >> (4 * i);
            let up = (up | (up >> 2) << 32) & 0x0303_0303_0303_0303;
            let scales = (low | up << 4).to_le_bytes();
            for j in 0..8 {
                out.s[8 * i + j] = d * (f32::from(scales[j]) - 32.0);
            }
        }
        for h in 0..2 {
            for j in 0..4 {
                for i in 0..32 {
                    let up = high[i] >> (4 * h + j) & 1;
                    out.quants[128 * h + 32 * j + i] = ((q[32 * h + i] >> (2 * j) & 3) | up << 2) as i8 - 4;
                }
            }
        }
    }
}

/// The eight scales and the eight minima of `Q4_K` and `Q5_K`, a byte each, the first one lowest.
#[inline(always)]
pub(super) fn six_bit_scales(packed: [u8; 12]) -> (u64, u64) {
    let [a, b, c] =
        bytemuck::cast::<[u8; 12], [[u8; 4]; 3]>(packed).map(|v| u64::from(u32::from_le_bytes(v)));
    let a = a | b << 32;
    // In both, four scales and then four minima.
    let first = a & 0x3f3f_3f3f_3f3f_3f3f;
    let last = ((c | (c >> 4) << 32) & 0x0f0f_0f0f_0f0f_0f0f) | (a >> 2 & 0x3030_3030_3030_3030);
    ((first & 0xffff_ffff) | last << 32, (first >> 32) | (last & 0xffff_ffff_0000_0000))
}

/// # Safety
///
/// `src` must be readable for 16 bytes: `d`, `dmin` and the eight 6-bit scales and minima of `Q4_K` and
/// `Q5_K`.
#[inline(always)]
unsafe fn scales_q4k(src: *const u8, out: &mut UnpackedBlocks) {
    // SAFETY: by the contract.
    let (d, dmin, packed) = unsafe { (f16_at(src, 0), f16_at(src, 2), bytes(src, 4)) };
    let (scales, minima) = six_bit_scales(packed);
    let (scales, minima) = (scales.to_le_bytes(), minima.to_le_bytes());
    let (scales, minima) = (scales.map(|v| d * f32::from(v)), minima.map(|v| -dmin * f32::from(v)));
    for i in 0..16 {
        out.s[i] = scales[i / 2];
        out.m[i] = minima[i / 2];
    }
}

pub(super) struct Q4K;

impl Format for Q4K {
    const BLOCK: usize = 256;
    const BYTES: usize = 144;
    const SUB: usize = 32;
    const MINS: bool = true;

    #[inline(always)]
    unsafe fn unpack(src: *const u8, _blocks: usize, out: &mut UnpackedBlocks) {
        // SAFETY: every offset is within the block.
        let q = unsafe {
            scales_q4k(src, out);
            bytes::<128>(src, 16)
        };
        for j in 0..4 {
            for i in 0..32 {
                out.quants[64 * j + i] = (q[32 * j + i] & 15) as i8;
                out.quants[64 * j + 32 + i] = (q[32 * j + i] >> 4) as i8;
            }
        }
    }
}

pub(super) struct Q5K;

impl Format for Q5K {
    const BLOCK: usize = 256;
    const BYTES: usize = 176;
    const SUB: usize = 32;
    const MINS: bool = true;

    #[inline(always)]
    unsafe fn unpack(src: *const u8, _blocks: usize, out: &mut UnpackedBlocks) {
        // SAFETY: every offset is within the block.
        let (high, q) = unsafe {
            scales_q4k(src, out);
            (bytes::<32>(src, 16), bytes::<128>(src, 48))
        };
        for j in 0..4 {
            for i in 0..32 {
                let (low, up) = (high[i] >> (2 * j) & 1, high[i] >> (2 * j + 1) & 1);
                out.quants[64 * j + i] = ((q[32 * j + i] & 15) | low << 4) as i8;
                out.quants[64 * j + 32 + i] = ((q[32 * j + i] >> 4) | up << 4) as i8;
            }
        }
    }
}

pub(super) struct Q6K;

impl Format for Q6K {
    const BLOCK: usize = 256;
    const BYTES: usize = 210;
    const SUB: usize = 16;
    const MINS: bool = false;

    #[inline(always)]
    unsafe fn unpack(src: *const u8, _blocks: usize, out: &mut UnpackedBlocks) {
        // SAFETY: every offset is within the block.
        let (low, high, scales, d) =
            unsafe { (bytes::<128>(src, 0), bytes::<64>(src, 128), bytes::<16>(src, 192), f16_at(src, 208)) };
        for i in 0..16 {
            out.s[i] = d * f32::from(scales[i] as i8);
        }
        for h in 0..2 {
            for i in 0..32 {
                let (a, b, up) = (low[64 * h + i], low[64 * h + 32 + i], high[32 * h + i]);
                let quants = &mut out.quants[128 * h + i..];
                quants[0] = ((a & 15) | (up & 3) << 4) as i8 - 32;
                quants[32] = ((b & 15) | (up >> 2 & 3) << 4) as i8 - 32;
                quants[64] = ((a >> 4) | (up >> 4 & 3) << 4) as i8 - 32;
                quants[96] = ((b >> 4) | (up >> 6) << 4) as i8 - 32;
            }
        }
    }
}

pub(super) struct Q8K;

impl Format for Q8K {
    const BLOCK: usize = 256;
    const BYTES: usize = 292;
    const SUB: usize = 32;
    const MINS: bool = false;

    #[inline(always)]
    unsafe fn unpack(src: *const u8, _blocks: usize, out: &mut UnpackedBlocks) {
        // SAFETY: every offset is within the block.
        let d = unsafe {
            out.quants = src.add(4).cast::<[i8; 256]>().read_unaligned();
            f32::from_le_bytes(bytes(src, 0))
        };
        out.s = [d; 16];
    }
}
