//! From GGML blocks to planes.

use super::format::Format;
use fulmen_core::quant::{BlockMXFP4, BlockQ4_0, BlockQ4_1, BlockQ4_K, BlockQ5_K, BlockQ6_K, BlockQ8_0};

/// One row.
pub(super) fn row(format: Format, blocks: &[u8], out: &mut [u8]) {
    let k = match format {
        Format::Q4_0 => blocks.len() / 18 * 32,
        Format::Q4_1 => blocks.len() / 20 * 32,
        Format::Q8_0 => blocks.len() / 34 * 32,
        Format::Q4K => blocks.len() / 144 * 256,
        Format::Q5K => blocks.len() / 176 * 256,
        Format::Q6K => blocks.len() / 210 * 256,
        Format::Mxfp4 => blocks.len() / 17 * 32,
    };
    let mut planes = Vec::with_capacity(4);
    let mut rest = out;
    // A row is in memory: its length fits.
    for bytes in format.planes(k as u32) {
        let (plane, after) = rest.split_at_mut(bytes as usize);
        planes.push(plane);
        rest = after;
    }
    match format {
        Format::Q4_0 => q4_0(bytemuck::cast_slice(blocks), &mut planes),
        Format::Q4_1 => q4_1(bytemuck::cast_slice(blocks), &mut planes),
        Format::Q8_0 => q8_0(bytemuck::cast_slice(blocks), &mut planes),
        Format::Q4K => q4_k(bytemuck::cast_slice(blocks), &mut planes),
        Format::Q5K => q5_k(bytemuck::cast_slice(blocks), &mut planes),
        Format::Q6K => q6_k(bytemuck::cast_slice(blocks), &mut planes),
        Format::Mxfp4 => mxfp4(bytemuck::cast_slice(blocks), &mut planes),
    }
}

type Planes<'a> = [&'a mut [u8]];

fn q4_0(blocks: &[BlockQ4_0], planes: &mut Planes<'_>) {
    for (i, block) in blocks.iter().enumerate() {
        put(planes[0], i, block.qs);
        put(planes[1], i, block.d);
    }
}

fn q4_1(blocks: &[BlockQ4_1], planes: &mut Planes<'_>) {
    for (i, block) in blocks.iter().enumerate() {
        put(planes[0], i, block.qs);
        put(planes[1], 2 * i, block.d);
        put(planes[1], 2 * i + 1, block.m);
    }
}

fn q8_0(blocks: &[BlockQ8_0], planes: &mut Planes<'_>) {
    for (i, block) in blocks.iter().enumerate() {
        let [lo, hi] = bytemuck::cast::<[i8; 32], [[u8; 16]; 2]>(block.qs);
        put(planes[0], i, lo);
        put(planes[1], i, hi);
        put(planes[2], i, block.d);
    }
}

fn q4_k(blocks: &[BlockQ4_K], planes: &mut Planes<'_>) {
    for (i, block) in blocks.iter().enumerate() {
        nibbles(&block.qs, i, planes[0]);
        put(planes[1], i, header(block.d, block.dmin, |j| block.scale_min(j)));
    }
}

fn q5_k(blocks: &[BlockQ5_K], planes: &mut Planes<'_>) {
    for (i, block) in blocks.iter().enumerate() {
        nibbles(&block.qs, i, planes[0]);
        put(planes[1], i, header(block.d, block.dmin, |j| block.scale_min(j)));
        for sub_block in 0..8 {
            // Byte `b` of the word has bit `w` of element `4w + b`, then those of the other 16.
            let bytes: [u8; 4] = std::array::from_fn(|b| {
                (0..8).fold(0, |byte, w| byte | ((block.qh[4 * w + b] >> sub_block) & 1) << w)
            });
            put(planes[2], 8 * i + sub_block, bytes);
        }
    }
}

fn q6_k(blocks: &[BlockQ6_K], planes: &mut Planes<'_>) {
    let sub_blocks = blocks.len() * 8;
    for (i, block) in blocks.iter().enumerate() {
        let quants = block.quants().map(|quant| (quant + 32) as u8);
        for (j, quants) in quants.as_chunks::<32>().0.iter().enumerate() {
            let at = 8 * i + j;
            put::<16>(planes[0], at, std::array::from_fn(|e| quants[e] & 15 | (quants[e + 16] & 15) << 4));
            for (half, quants) in quants.as_chunks::<16>().0.iter().enumerate() {
                let bytes: [u8; 4] = std::array::from_fn(|b| {
                    (0..4).fold(0, |byte, w| byte | (quants[4 * w + b] >> 4) << (2 * w))
                });
                put(planes[1], half * sub_blocks + at, bytes);
            }
            put(planes[2], at, [block.scales[2 * j] as u8, block.scales[2 * j + 1] as u8]);
        }
        put(planes[3], i, block.d);
    }
}

fn mxfp4(blocks: &[BlockMXFP4], planes: &mut Planes<'_>) {
    for (i, block) in blocks.iter().enumerate() {
        put(planes[0], i, block.qs);
        put(planes[1], i, [block.e]);
    }
}

/// Writes the `i`-th `N` bytes.
fn put<const N: usize>(plane: &mut [u8], i: usize, bytes: [u8; N]) {
    plane[i * N..][..N].copy_from_slice(&bytes);
}

/// The quants of super-block `i`: every 32 bytes hold two sub-blocks of 32 elements, which become 16 bytes
/// each.
fn nibbles(quants: &[u8; 128], i: usize, plane: &mut [u8]) {
    for (c, pair) in quants.as_chunks::<32>().0.iter().enumerate() {
        let at = 8 * i + 2 * c;
        put::<16>(plane, at, std::array::from_fn(|e| pair[e] & 15 | pair[e + 16] << 4));
        put::<16>(plane, at + 1, std::array::from_fn(|e| pair[e] >> 4 | pair[e + 16] & 0xf0));
    }
}

/// Super-block scales, lower four bits of the scales, of the minima, upper two bits of both.
fn header(d: [u8; 2], dmin: [u8; 2], scale_min: impl Fn(usize) -> (u8, u8)) -> [u8; 16] {
    let mut words = [u32::from(u16::from_le_bytes(d)) | u32::from(u16::from_le_bytes(dmin)) << 16, 0, 0, 0];
    for j in 0..8 {
        let (scale, min) = scale_min(j);
        let (scale, min) = (u32::from(scale), u32::from(min));
        words[1] |= (scale & 15) << (4 * j);
        words[2] |= (min & 15) << (4 * j);
        words[3] |= (scale >> 4) << (2 * j) | (min >> 4) << (16 + 2 * j);
    }
    bytemuck::cast(words.map(u32::to_le_bytes))
}
