//! Bit planes: how every block format lays out quants of 1, 2 or 4 bits.
//!
//! A run of `WIDTH` bytes holds `8 / BITS` planes of `WIDTH` quants each; plane `p` sits in the bits from
//! `p * BITS` up. All formats are this one scheme with other parameters, and with `WIDTH` a constant the
//! inner loops are plain byte vectors.

/// Reads the quants of `src` and ORs them, shifted left by `shift`, into `out`.
///
/// `out` must hold `src.len() * 8 / BITS` quants, and `src` whole runs.
#[inline(always)]
pub(super) fn unpack<const BITS: usize, const WIDTH: usize>(src: &[u8], shift: u32, out: &mut [u8]) {
    debug_assert_eq!(src.len() * 8 / BITS, out.len());
    let mask = (1u8 << BITS) - 1;
    let planes = out.as_chunks_mut::<WIDTH>().0;
    for (run, planes) in src.as_chunks::<WIDTH>().0.iter().zip(planes.chunks_exact_mut(8 / BITS)) {
        for (p, plane) in planes.iter_mut().enumerate() {
            for (quant, byte) in plane.iter_mut().zip(run) {
                *quant |= ((byte >> (p * BITS)) & mask) << shift;
            }
        }
    }
}

/// Writes bits `shift..shift + BITS` of every value of `quants` to `dst`, the inverse of [`unpack`].
#[inline(always)]
pub(super) fn pack<const BITS: usize, const WIDTH: usize>(quants: &[u8], shift: u32, dst: &mut [u8]) {
    debug_assert_eq!(dst.len() * 8 / BITS, quants.len());
    let mask = (1u8 << BITS) - 1;
    let planes = quants.as_chunks::<WIDTH>().0;
    for (run, planes) in dst.as_chunks_mut::<WIDTH>().0.iter_mut().zip(planes.chunks_exact(8 / BITS)) {
        *run = [0; WIDTH];
        for (p, plane) in planes.iter().enumerate() {
            for (byte, quant) in run.iter_mut().zip(plane) {
                *byte |= ((quant >> shift) & mask) << (p * BITS);
            }
        }
    }
}

/// Stored quants as signed values, without their offset.
#[inline(always)]
pub(super) fn signed<const N: usize>(quants: &[u8; N], offset: u8) -> [i8; N] {
    quants.map(|quant| quant.wrapping_sub(offset) as i8)
}

/// The inverse of [`signed`].
#[inline(always)]
pub(super) fn unsigned<const N: usize>(quants: &[i8; N], offset: u8) -> [u8; N] {
    quants.map(|quant| (quant as u8).wrapping_add(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<const BITS: usize, const WIDTH: usize>() {
        let mut rng = fastrand::Rng::with_seed(1);
        let src: Vec<u8> = (0..128).map(|_| rng.u8(..)).collect();
        for shift in 0..=(8 - BITS as u32) {
            let mut quants = vec![0; src.len() * 8 / BITS];
            unpack::<BITS, WIDTH>(&src, shift, &mut quants);
            let mut back = vec![0xff; src.len()];
            pack::<BITS, WIDTH>(&quants, shift, &mut back);
            assert_eq!(src, back, "{BITS} bits, width {WIDTH}, shift {shift}");
        }
    }

    #[test]
    fn packing_inverts_unpacking() {
        round_trip::<1, 1>();
        round_trip::<1, 32>();
        round_trip::<2, 4>();
        round_trip::<2, 32>();
        round_trip::<4, 8>();
        round_trip::<4, 16>();
        round_trip::<4, 32>();
        round_trip::<4, 64>();
    }
}
