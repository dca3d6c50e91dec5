//! Activations in 8 bits that a kernel hands on to the product behind it (`codes.cuh`).

/// Bytes of the codes of `k` elements.
pub(crate) fn bytes(k: u32) -> usize {
    k.div_ceil(512) as usize * 768
}

/// Whether codes of `k` elements can be handed on: products take units of 64.
pub(crate) fn fit(k: u32) -> bool {
    k > 0 && k.is_multiple_of(64)
}
