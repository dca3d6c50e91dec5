//! Helper functions of `kv/store.wgsl` for an f16 cache, one thread per element: `prepare(thread)`
//! (nothing to do) and `cache_bits(i)`, the i-th 16 bits of the encoded head. Expects `f16_bits` and
//! `head_values`.
fn prepare(thread: u32) {}

fn cache_bits(i: u32) -> u32 { return f16_bits(head_values[i]); }
