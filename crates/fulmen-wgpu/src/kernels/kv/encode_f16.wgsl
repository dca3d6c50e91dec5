fn prepare(thread: u32) {}

// The i-th 16 bits of the head as the cache has it.
fn half_of(i: u32) -> u32 { return half_bits(head_values[i]); }
